"""Runtimes, which run a model on a device: one module each. Nothing here plans or measures.

Enters: a model file and `SessionOptions`. Leaves: a session that runs it; or the files and settings with which anybody
runs it without taglio.
"""
