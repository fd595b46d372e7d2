"""The devices and links of a cluster file on one Linux machine. Plans nothing, and knows no engine.

Each device is a network namespace with a CPU quota; the links between them are one user-space process that holds
packets back for as long as the cluster file says.
"""
