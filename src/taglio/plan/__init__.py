"""Decide which block runs where and in which precision: formulation, exact solver, independent check."""
