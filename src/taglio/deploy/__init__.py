"""The delivered folder: model files, settings, samples, and a check that anybody can run without taglio.

Built components enter; a folder leaves, proven in a child process that imports NumPy and the runtime only. Nothing here
chooses, measures or quantises.
"""
