"""Find the fastest mixed-precision form of a neural network that keeps its answers, and prove it.

`taglio.flow.optimize.optimize` is the whole flow; each stage is a module of its own (see docs/layout.md). Importing
this package loads nothing heavy.
"""
