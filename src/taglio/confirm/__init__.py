"""Delivered files measured in a process without taglio: the race beside the source model that is reported, and loads.

Folders and model files enter; a speed-up with its interval leaves, or the times of runs. Nothing here plans, builds or
measures errors.
"""
