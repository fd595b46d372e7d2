"""Several machines: devices and links, their TOML file, the Ray engine that runs a plan on them, their emulation.

`devices` and `file` are values that planning reads; `engine` and `emulate` act, and know the whole flow.
"""
