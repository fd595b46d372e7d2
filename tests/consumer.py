"""A user's program, type-checked against the installed wheel and run there by `make dist`."""

from pathlib import Path

import taglio
from taglio.embedded import digits_data, digits_model

model: Path = digits_model()
data: Path = digits_data()
assert model.exists() and data.exists()
assert taglio.__doc__
