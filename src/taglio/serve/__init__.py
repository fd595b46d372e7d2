"""Serve built models by the Open Inference Protocol v2, over REST and gRPC.

Enters: workspace directories that hold built components. Leaves: answers to requests, metrics, a status page. Nothing
is planned, quantised or measured for a plan here; what a plan predicted is shown beside what requests took.
"""
