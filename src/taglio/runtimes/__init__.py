"""Runtimes, which run a model on a device: one module each. Nothing here plans or measures."""
