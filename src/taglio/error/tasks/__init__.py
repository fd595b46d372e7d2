"""Tasks: score how well changed outputs do the model's task, against labels or the float model's own outputs.

Each sample's outputs, and its label if there is one, become a small piece of evidence; all evidence becomes one number,
usually a share of correct answers. Runs no model and knows no limit.
"""
