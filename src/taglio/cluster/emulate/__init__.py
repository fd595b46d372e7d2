"""Emulate the devices and links of a cluster file on one Linux machine. Plans nothing, and does not use the engine.

Each device is a network namespace with a CPU quota; one user-space process carries the links and delays packets as the
cluster file says.
"""
