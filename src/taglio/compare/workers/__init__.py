"""What runs inside a back end's own process and environment. Imports that back end, and of taglio only what needs no
package beyond NumPy (the ONNX Runtime worker, which runs in taglio's own environment, excepted)."""
