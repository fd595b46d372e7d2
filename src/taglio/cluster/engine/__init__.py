"""Run components on several machines with Ray. Implements no transport, membership or scheduler.

Ray's nodes are devices, its actors host components, its calls carry tensors, and its token and TLS secure them.
"""
