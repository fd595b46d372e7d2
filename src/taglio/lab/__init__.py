"""An opened model, and all that a search measures of it: sessions, times side by side, answers.

Input: a model with its data and set-up. Output: times, errors, built plans. Nothing is chosen here.
"""
