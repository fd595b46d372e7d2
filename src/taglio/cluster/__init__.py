"""Several machines: devices and links, their TOML file, planning for them, the Ray engine that runs plans, emulation.

`planning` takes and returns values; `engine` and `emulate` act and may use the whole flow.
"""
