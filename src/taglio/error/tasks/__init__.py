"""What a model's outputs mean to its user: how well changed outputs do the task of the float model's.

Enters: outputs of all samples, of the float model and of a changed one, and labels where there are any. Leaves: one
number per task, mostly a share of answers that are right. No model is run here, and no bound is known.
"""
