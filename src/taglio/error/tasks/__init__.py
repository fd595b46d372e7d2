"""What a model's outputs mean to its user: how well changed outputs do the task of the float model's.

Enters: the outputs of one sample at a time, and its label where there is one. Leaves: of each sample a small piece of
evidence, and of all evidence one number, mostly a share of answers that are right. No model is run here, and no bound
is known.
"""
