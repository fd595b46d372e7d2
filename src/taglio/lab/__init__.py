"""An opened model, and all that a search measures of it: sessions, times side by side, answers.

Input: a model with its data and set-up. Output: times, errors, built plans. Nothing is chosen here.

`work.py` is the opened model, which every stage takes, with its settings (`setup.py`) and its budget (`budget.py`).
`lab.py` has what opens and times models, for which tests give a simulated machine; `side_by_side.py` races with it.
`build.py` builds a plan.
"""
