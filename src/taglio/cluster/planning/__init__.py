"""Decide which block of which model runs on which device and in which precision. What is for one machine is `plan/`."""
