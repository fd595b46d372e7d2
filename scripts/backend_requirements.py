"""Print what one back end's environment needs, a requirement a line, from pyproject.toml's extra of its name.

Runs before anything is installed: standard library only.
"""

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main(arguments: list[str]) -> int:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    known = [name for name in extras if name not in ("dev", "bench", "train")]
    if len(arguments) != 1 or arguments[0] not in known:
        sys.stderr.write(f"no back end {' '.join(arguments) or 'was named'}: choose among {', '.join(known)}\n")
        return 2
    sys.stdout.write("".join(f"{line}\n" for line in extras[arguments[0]]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
