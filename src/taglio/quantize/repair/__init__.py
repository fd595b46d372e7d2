"""Repairs: lower the error of int8 at the same speed, using calibration samples. Does not choose which repairs to use.

Each repair (`scheme.REPAIRS`) is a function from the float model and its ranges to new ranges, weights or biases. They
are stored with the calibration, so that everything that builds an int8 block (switchable graph, builder, checker) uses
the same.
"""
