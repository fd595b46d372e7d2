"""Profiles: measured seconds per block and form, and per boundary, on one device. Chooses no forms.

Enters: a model with its blocks, a scheme, and inputs. Leaves: a `Profile`, which predicts the seconds of any mix of
forms. Its stop-watch also times the plans of the search; confirm/ and ways/ time what is delivered.
"""
