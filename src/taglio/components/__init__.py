"""Cut a quantised model into components, one per session of a device, and prove that together they equal the whole."""
