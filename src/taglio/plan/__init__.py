"""Choose the form of every block on one machine: formulation, HiGHS, independent check; and the plan as a value."""
