"""Run components in this process and time them. Running on a cluster is in cluster/engine."""
