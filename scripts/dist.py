"""Build the wheel and the sdist in dist/, and check them as a user would meet them: no checkout, a fresh environment.

A linter reads the Dockerfile. The wheel is built from the sdist and installed in a temporary environment with the
versions of constraints.txt; from an empty folder, `taglio quickstart` must end well and a program that uses the public
names must pass `mypy --strict`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSUMER = ROOT / "tests" / "consumer.py"


def run(*words: object, cwd: Path = ROOT) -> str:
    """Standard output of a program that must succeed; what it says otherwise ends this one."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dist: {' '.join(map(str, words))} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def main() -> int:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    run(Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build")
    wheel, sdist = next(ROOT.glob("dist/*.whl")), next(ROOT.glob("dist/*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    print(f"dist: built {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and {sdist.name}; twine check passed")
    with tempfile.TemporaryDirectory(prefix="taglio-dist-") as folder:
        place = Path(folder) / "environment"
        empty = Path(folder) / "empty"
        empty.mkdir()
        run(sys.executable, "-m", "venv", place)
        python, pip = place / "bin" / "python", ("-m", "pip", "-q", "--disable-pip-version-check", "install")
        run(python, *pip, "-c", ROOT / "constraints.txt", wheel, "mypy")
        said = run(place / "bin" / "taglio", "--version", cwd=empty).strip()
        if said != f"taglio {version}":
            sys.exit(f"dist: the wheel says {said}, pyproject.toml says {version}")
        where = Path(run(python, "-c", "import taglio; print(taglio.__file__)", cwd=empty).strip())
        if not where.is_relative_to(place):
            sys.exit(f"dist: taglio was imported from {where}, not from the wheel")
        result = json.loads(run(place / "bin" / "taglio", "quickstart", "--json", cwd=empty))
        print(
            f"dist: quickstart from the wheel: plan {result['plan']['latency_s'] * 1e3:.2f} ms, "
            f"float {result['float32']['latency_s'] * 1e3:.2f} ms"
        )
        shutil.copy(CONSUMER, empty)
        run(python, "-m", "mypy", "--strict", CONSUMER.name, cwd=empty)
        run(python, CONSUMER.name, cwd=empty)
        print("dist: a program that uses taglio passes mypy --strict and runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
