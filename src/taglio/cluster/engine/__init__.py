"""Run components on several machines with Ray: nodes are devices, actors host components, calls carry tensors, Ray's
token and TLS secure them. Implements no transport, membership or scheduler."""
