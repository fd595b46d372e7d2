"""Serve built models by the Open Inference Protocol v2, over REST and gRPC.

Input: workspace directories with built components. Output: answers to requests, metrics. Plans, quantises
and profiles nothing; shows the plan's predicted latency beside the measured one.
"""
