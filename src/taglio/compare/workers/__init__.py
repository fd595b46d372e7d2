"""Code that runs in a back end's own process and environment. Imports that back end, and only those parts of taglio
that need no package beyond NumPy (except the ONNX Runtime worker, which runs in taglio's own environment)."""
