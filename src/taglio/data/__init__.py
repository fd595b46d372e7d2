"""Arrays and images → samples that fit a model's inputs, in calibration and held-out parts. Runs no model."""
