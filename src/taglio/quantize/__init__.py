"""Every way to quantise a model. Does not choose what to quantise.

Enters: a model with its blocks, calibration samples, and a form for every block. Leaves: the ONNX model in these forms,
and the blocks that a runtime cannot compute in int8, with the reasons.
"""
