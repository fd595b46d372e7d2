"""Samples for a model's inputs, read from arrays, images, sounds and texts; calibration and held out. Runs no model."""
