"""Run components and say how long they took. In one process here; clusters come beside it."""
