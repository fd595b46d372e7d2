"""Code that runs in a back end's own process and environment.

It imports that back end, and only those parts of taglio that need no package beyond NumPy. The ONNX Runtime worker is
the exception: it runs in taglio's own environment.
"""
