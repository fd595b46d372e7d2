"""Arrays, images, sounds and texts → samples that fit a model's inputs, split into calibration and held-out parts. Runs
no model."""
