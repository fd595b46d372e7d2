"""An ONNX file, read, checked and simplified; its blocks and the tensors between them; their FLOPs.

Enters: a file and its input shapes. Leaves: `Model` and `Graph`. Nothing is calibrated, quantised or timed here.
"""
