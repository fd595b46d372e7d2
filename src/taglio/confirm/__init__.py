"""The race that is reported: delivered files beside the source model, opened afresh in a process without taglio.

Folders and model files enter; a speed-up with its interval leaves. Nothing here plans, builds or measures errors.
"""
