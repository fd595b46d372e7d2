"""How quantising any subset of blocks changes the output: measured on one switchable graph, then fitted."""
