"""Write the lock files of the back ends' environments again, with the newest versions that taglio's ranges allow.

Needs uv on the PATH and a package index. One file serves every system and every Python that the environment supports.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from taglio.compare.environments import ENVIRONMENTS, Environment

FOLDER = Path(__file__).parents[1] / "src" / "taglio" / "compare" / "locks"


def lock(environment: Environment, folder: Path) -> str:
    below = ".".join(map(str, environment.python_below))
    packages = ", ".join(f'"{name}{versions}"' for name, versions in environment.packages.items())
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "lock"\nversion = "0"\nrequires-python = ">=3.11,<{below}"\ndependencies = [{packages}]\n'
    )
    words = ["uv", "export", "--quiet", "--no-hashes", "--no-header", "--no-annotate", "--no-emit-project"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    head = f'# Every package of the environment "{environment.name}", pinned: made by scripts/lock_backends.py.'
    return f"{head}\n{done.stdout}"


def main(names: list[str]) -> int:
    for environment in ENVIRONMENTS:
        if not names or environment.name in names:
            with tempfile.TemporaryDirectory() as folder:
                text = lock(environment, Path(folder))
            (FOLDER / f"{environment.name}.txt").write_text(text, encoding="utf-8")
            print(f"{environment.name}: {len(text.splitlines()) - 1} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
