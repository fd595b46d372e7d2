"""The order of the stages: imports run one way, nothing happens on import, and files stay small and described."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# From first to last. A room may import what stands on a line above its own, and itself; rooms that share a line do not
# know each other. A new file or folder takes its place here when it is added.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "notes", "progress"),
    ("conformal", "cores", "optional", "scratch", "student"),
    ("memory", "weights"),
    ("arguments", "artifact", "cluster.devices", "data", "embedded", "runtimes"),
    ("cluster.file", "model", "transaction"),
    ("quantize",),
    ("profile",),
    ("error",),
    ("plan",),
    ("cluster.planning",),
    ("cluster.emulate",),
    ("components",),
    ("deploy",),
    ("confirm",),
    ("run", "ways"),
    ("compare",),
    ("lab",),
    ("search",),
    ("flow",),
    ("report",),
    ("cluster.engine",),
    ("serve",),
    ("cli",),
    ("__main__",),
)
RANK = {room: rank for rank, line in enumerate(LAYERS) for room in line}
LONGEST = 600  # a concept that needs more is two; one that needs less stays whole

FILES = sorted((SRC / "taglio").rglob("*.py"))


def name_of(path: Path) -> str:
    """`taglio.cluster.planning.check` for its file, `taglio.plan` for the folder's `__init__`."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module."""
    return {name: ast.parse(path.read_bytes(), str(path)) for name, path in MODULES.items()}


def room_of(module: str) -> str:
    """The file or folder of src/taglio that holds a module; empty for the package. `cluster` has several."""
    first, _, rest = module.partition(".")[2].partition(".")
    inner = f"{first}.{rest.partition('.')[0]}"
    return inner if inner in RANK else first


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the full name of all that a tree imports, also where only a type checker looks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            for alias in node.names:
                inner = f"{start}.{alias.name}"
                yield node.lineno, inner if inner in MODULES else start


def own_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Of these, what is taglio's or written as a relative import."""
    return ((line, name) for line, name in imported(tree) if name.split(".")[0] in ("taglio", ""))


def wrong_imports(module: str, tree: ast.AST) -> list[str]:
    """A line for each import that runs against the order."""
    room = room_of(module)
    wrong = []
    for line, name in own_imports(tree):
        other = room_of(name)
        if name.startswith("."):
            wrong.append(f"{module}:{line} imports {name}: write it in full")
        elif not other:
            wrong.append(f"{module}:{line} imports from taglio itself: name the module")
        elif other not in RANK:
            wrong.append(f"{module}:{line} imports {name}, which has no place in LAYERS")
        elif room and room != other and RANK[room] <= RANK[other]:
            wrong.append(f"{module}:{line} imports {name}, which comes after {room} or beside it")
    return wrong


def test_imports_run_one_way(trees: dict[str, ast.Module]) -> None:
    assert {room_of(module) for module in MODULES} - {"", "cluster", *RANK} == set(), (
        "give these their places in LAYERS"
    )
    assert [line for module, tree in trees.items() for line in wrong_imports(module, tree)] == []


def test_no_import_cycle(trees: dict[str, ast.Module]) -> None:
    depends = {module: {name for _, name in own_imports(tree)} for module, tree in trees.items()}
    tuple(TopologicalSorter(depends).static_order())


def test_the_checker_never_meets_the_solver(trees: dict[str, ast.Module]) -> None:
    seen: set[str] = set()
    todo = ["taglio.cluster.planning.check", "taglio.plan.check"]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += [name for _, name in imported(trees[module]) if name in trees] if module in trees else []
    reached = seen | {name for module in seen & trees.keys() for _, name in imported(trees[module])}
    planning = {name for name in MODULES if name.rpartition(".")[0] in ("taglio.plan", "taglio.cluster.planning")}
    assert "taglio.plan.result" in reached
    assert reached & planning <= {"taglio.plan.check", "taglio.plan.result", "taglio.cluster.planning.check"}
    assert not [name for name in reached if name.split(".")[0] in ("highspy", "scipy")]


def test_files_are_short_and_named_after_a_concept() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}, "a part has a name of its own"
    assert [path for path in FILES if path.stem in ("utils", "util", "helpers", "common", "misc")] == []


WATCH = """
import importlib, os, sys

def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if path != os.devnull and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            sys.exit(f"opens {path} to write")
    elif event.split(".")[0] in ("socket", "subprocess") or event in ("os.mkdir", "os.rename", "os.fork", "os.system"):
        sys.exit(f"{event} {arguments}")

for name in ("highspy", "msgspec", "numpy", "onnx", "PIL.Image", "rich"):
    importlib.import_module(name)

import onnxruntime

def refuse(*arguments, **options):
    sys.exit("opens a session")

onnxruntime.InferenceSession.__init__ = refuse
sys.addaudithook(watch)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def imported_under_watch(folder: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    """Import modules in a fresh interpreter that keeps no byte code and starts in an empty folder."""
    command = [sys.executable, "-B", "-c", WATCH, *modules]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.whole
def test_nothing_happens_on_import(tmp_path: Path) -> None:
    # Workers import back ends that this environment lacks; what they share with core is imported by others.
    ours = (
        name for name in MODULES if not name.endswith("__main__") and not name.startswith("taglio.compare.workers.")
    )
    done = imported_under_watch(tmp_path, *ours)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
