"""Cut a quantised model into the pieces that devices run, and prove that the pieces equal the whole."""
