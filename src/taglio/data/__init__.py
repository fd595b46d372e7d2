"""Samples for a model's inputs, read from arrays, images, sounds and texts; calibration and held out. Runs no model.

Enters: a path or values in memory, and the inputs of a model. Leaves: a `Dataset` of samples that the model can be fed,
which `split` divides into calibration and held-out parts.
"""
