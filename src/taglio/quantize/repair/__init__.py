"""What makes int8 better at the same speed, from calibration samples. Does not choose which repairs to use.

Each repair (`scheme.REPAIRS`) is a function from the float model and its ranges to other ranges or biases. They are
values of the calibration, so that whatever builds an int8 block — switchable graph, builder, checker — sees the same.
"""
