"""How quantising any subset of blocks changes the output: measured on one switchable graph, then fitted.

Enters: a model with its blocks, calibrated ranges and held-out samples. Leaves: an `ErrorModel`, which predicts the
error of any mix of forms, and measured errors of single mixes. Chooses no forms.
"""
