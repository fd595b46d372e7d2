"""The search: which places, scheme and forms to plan with, which plans to measure, which is the fastest that holds.

Input: an opened model and limits. Output: a decision, with the ledger of what was tried. Nothing is written here.

The files in the order in which a search runs:

1. `screen.py` chooses places, scheme and forms. `places.py` races the float model in every place, `form_race.py` the
   forms beside it; `bound.py` and `error_bound.py` show where no plan can gain. `instead.py` replaces a source that
   breaks the limit.
2. `decide.py` makes the decision. In each place, `explore.py` plans and races; `search.py` is its loop of solving and
   measuring errors, and `rules.py` has plans that need no solver.
3. `finalists.py` puts the races of all places on one scale, and judges the fastest plans by their `answers.py` on
   held-out inputs, those of `unseen.py` included.

`ledger.py` has the values that these files pass on, `front.py` the plans for other limits, `limits.py` and `by_hand.py`
what users ask for.
"""
