"""Ways of running a delivered model: threads of a run, runs at once, items joined in a run. Plans no forms.

Input: folders in deploy/'s format, and a number of cores. Output: the way with the highest capacity or rate, and its
figures.

`choose.py` measures ways of all models: `climb.py` says which to measure next, and `replay.py` computes the rate of a
way within a limit on latency. `confirm.py` confirms the chosen way. `loaded.py` measures the latency under a load.
"""
