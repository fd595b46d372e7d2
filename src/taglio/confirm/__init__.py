"""Delivered files measured in a process without taglio: the race beside the source model that is reported, and loads.

Input: folders of models, delivered or source. Output: a speed-up with its interval, or the times of runs. Nothing here
plans, builds or measures errors.

`answering.py` is the process that opens and runs folders, and `bench.py` calls it. `race.py` decides how many openings
a race has, and `speedup.py` computes the ratio and its interval from them.
"""
