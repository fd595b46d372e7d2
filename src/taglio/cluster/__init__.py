"""Several machines: devices and links, their TOML file, the Ray engine that runs plans on them, and their emulation.

Planning reads the values in `devices` and `file`; `engine` and `emulate` act and may use the whole flow.
"""
