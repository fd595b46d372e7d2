"""Cut a quantised model into components, one per session of a device, and prove that together they equal the whole.

Enters: a quantised model and the device of every block. Leaves: a model file for each component, their manifest, and
the proof. Chooses no device.
"""
