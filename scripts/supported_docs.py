"""Write docs/supported.md from pyproject.toml, constraints.txt and the environments of back ends.

With `--check`, write nothing and fail where the page is not current.
"""

import re
import sys
import tomllib
from pathlib import Path

from taglio.compare.environments import ENVIRONMENTS

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.generated_page import DOCS, ROOT, main

LOCKS = ROOT / "src" / "taglio" / "compare" / "locks"
PAGE = DOCS / "supported.md"
PINNED = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
HEAD = """# Supported versions

<!-- Written by `make reference` from pyproject.toml, constraints.txt and src/taglio/compare/environments.py. -->

Linux on x86-64 with {python} is what the tests run on. The newest release of taglio is supported.

| package | needed for | versions allowed | tests pass with |
| --- | --- | --- | --- |
"""
BACKENDS = """
Back ends of `taglio compare`, each in an environment that `taglio backends add NAME` builds:

| name | packages | Python | disk |
| --- | --- | --- | --- |
"""
EXTRAS = ("cluster", "serve", "openvino", "text", "datasets")


def render() -> str:
    """The whole page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = {_plain(name): version for name, version in PINNED.findall(_pins())}
    wanted = [("taglio", requirement) for requirement in project["dependencies"]]
    wanted += [
        (f"`taglio[{extra}]`", requirement)
        for extra in EXTRAS
        for requirement in project["optional-dependencies"][extra]
    ]
    lines = [HEAD.format(python="Python " + project["requires-python"].replace(">=", "≥ "))]
    for use, requirement in wanted:
        name, allowed = _split(requirement)
        lines.append(f"| {name} | {use} | {allowed} | {pinned.get(_plain(name), '–')} |\n")
    lines.append(BACKENDS)
    for environment in ENVIRONMENTS:
        packages = ", ".join(" ".join(_split(f"{name}{versions}")) for name, versions in environment.packages.items())
        below = ".".join(map(str, environment.python_below))
        lines.append(
            f"| {environment.name} | {packages} | 3.11 to below {below} | {environment.disk_bytes / 1e9:.1f} GB |\n"
        )
    return "".join(lines)


def _pins() -> str:
    return (LOCKS / "openvino.txt").read_text(encoding="utf-8") + (ROOT / "constraints.txt").read_text(encoding="utf-8")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _split(requirement: str) -> tuple[str, str]:
    text = requirement.partition(";")[0].strip()
    match = re.match(r"[\w.-]+", text)
    assert match is not None
    return match.group(), text[match.end() :].replace(">=", "≥ ").replace(",<", ", < ").replace("~=", "~ ")


if __name__ == "__main__":
    sys.exit(main(PAGE, render, __doc__))
