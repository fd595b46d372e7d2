"""Measure how each back end runs one model, side by side. Plans nothing."""
