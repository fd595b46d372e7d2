"""The command line itself: every command and option explained, numbers read as people write them, exit codes."""

import argparse
import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taglio.cli import models
from taglio.cli.options import OPTIONS
from taglio.cli.parser import COMMANDS, Command, arguments, build_parser
from taglio.cli.words import as_flags
from taglio.cores import available_cores
from taglio.errors import BadOption, Infeasible
from taglio.scratch import PREFIX
from tests.end_to_end.command import ENVIRONMENT, Case, Ran, refused, taglio
from tests.models import conv_relu_chain, saved


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_a_command_explains_itself(command: Command) -> None:
    ran = taglio(*command.words.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert command.about and f"usage: taglio {command.words}" in ran.out
    assert ("--json" in ran.out) == command.json


def test_every_option_explains_itself() -> None:
    own = {f"{command.words} {name}": facts for command in COMMANDS for name, facts in command.own.items()}
    assert [name for name, facts in (OPTIONS | own).items() if not 2 <= len(facts["help"].split()) <= 25] == []


def test_help_and_version() -> None:
    ran = taglio("--help")
    assert ran.code == 0 and ran == taglio()
    assert all(command.words.split()[0] in ran.out for command in COMMANDS)
    assert taglio("--version").out.startswith("taglio ")
    assert taglio("--version").code == 0


@pytest.mark.parametrize("arguments", [("fly",), ("inspect",), ("run", "out", "--runs", "0"), ("inspect", "a", "b")])
def test_what_is_no_command_is_one_line(arguments: tuple[str, ...]) -> None:
    refused(taglio(*arguments))


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.01", 0.01), ("1%", 0.01), ("0.5%", 0.005), ("1e-3", 0.001), ("0", 0.0), ("100%", 1.0), (" 2 %", 0.02)],
)
def test_a_bound_is_a_number_or_a_percentage(text: str, value: float) -> None:
    for command in (["plan", "out"], ["optimize", "m", "--data", "d", "-o", "out"]):
        parsed = build_parser().parse_args([*command, "--max-error", text])
        assert parsed.max_error == pytest.approx(value)


def test_the_first_limit_on_the_command_line_steers() -> None:
    def asked(*limits: str) -> dict[str, object]:
        words = ["optimize", "m.onnx", "--data", "d.npz", "-o", "out", *limits]
        parsed = arguments(build_parser().parse_args(words))
        return {name: parsed[name] for name in ("max_error", "min_score", "max_drop", "metric") if name in parsed}

    assert asked("--max-error", "3%", "--max-drop", "ctc=1%") == {"max_error": 0.03, "max_drop": {"ctc": 0.01}}
    steered = {"max_error": {"relative-l2": 0.03}, "max_drop": {"ctc": 0.01}, "metric": "ctc"}
    assert asked("--max-drop", "ctc=1%", "--max-error", "3%") == steered
    named = {"min_score": 0.99, "max_error": {"relative-l2": 0.03}, "metric": "top1"}
    assert asked("--max-error", "relative-l2=3%", "--min-score", "99%", "--metric", "top1") == named


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def stopped_by(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Ran:
    def stop(_: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(models, "inspect", stop)
    return taglio("inspect", "model.onnx")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Infeasible("the best reaches 3 %"), 3, ("Infeasible", "3 %")),
        (KeyboardInterrupt(), 130, ("stopped",)),
        (KeyboardInterrupt(15), 143, ("stopped",)),
        (caused(ImportError("initialization failed"), KeyboardInterrupt()), 130, ("stopped",)),
        (MemoryError(), 2, ("out of memory",)),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/a"), 2, ("out/a", "the disk is full")),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
)
def test_what_stops_a_command_is_one_line(
    error: BaseException, code: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(stopped_by(error, monkeypatch), *words, code=code)


def test_help_and_the_start_of_devices_load_no_runtime() -> None:
    """`taglio --help` answers at once: what is heavy is imported by the command that needs it."""
    heavy, runtimes = ("onnx", "numpy", "PIL", "rich"), ("onnxruntime", "openvino", "highspy", "ray")
    code = f"import sys, taglio.cli; taglio.cli.build_parser(); print([m for m in {heavy} if m in sys.modules]); "
    code += f"import taglio.cli.devices; print([m for m in {runtimes} if m in sys.modules])"
    assert printed(code).split() == ["[]", "[]"]


@pytest.mark.whole
def test_fits_use_the_threads_of_sessions() -> None:
    """NumPy's linear algebra reads its limit on import: `--threads`, or the cores that this process may use."""
    code = (
        "import os, sys; os.environ.pop('OPENBLAS_NUM_THREADS', None); import taglio.cli as cli; "
        "cli.run = lambda _: print(os.environ.get('OPENBLAS_NUM_THREADS'), 'numpy' in sys.modules) or 0; cli.main({})"
    )
    profile = ["profile", "m.onnx", "--data", "d.npz", "-o", "out"]
    assert printed(code.format([*profile, "--threads", "1"])) == "1 False"
    assert printed(code.format(profile)) == f"{available_cores()} False"


def printed(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    return ran.stdout.strip()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`max_error` is 'x': give a number", "--max-error is 'x': give a number"),
        ("`pins` contradict `keep_off`", "--pin contradict --keep-off"),
        ("`shapes` names the input z", "--shape names the input z"),
        ("no such file: run `taglio plan` first", "no such file: run taglio plan first"),
        ("block `Conv 1` has `no form`", "block `Conv 1` has `no form`"),
    ],
)
def test_arguments_of_the_library_are_shown_as_flags(said: str, shown: str) -> None:
    assert as_flags(said) == shown


def test_an_option_of_another_command_is_reported_with_the_help_of_this_one() -> None:
    with pytest.raises(BadOption, match="taglio inspect does not know --data x: see taglio inspect --help"):
        build_parser().parse_args(["inspect", "model.onnx", "--data", "x"])


def process(*arguments: str, cwd: Path | None = None, shell: str = "", **environment: str) -> Ran:
    """A command in a process of its own; `shell` follows it on a shell's line."""
    words = shlex.join([sys.executable, "-m", "taglio", *arguments])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{words} {shell}"], capture_output=True, env=ENVIRONMENT | environment, cwd=cwd, check=False
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode())


@pytest.mark.whole
def test_closed_streams_change_nothing_else(tiny: Case) -> None:
    closed = ">&- 2>&- <&-"
    assert process("inspect", str(tiny.model), "--json", shell=closed) == Ran(0, "", "")
    assert process("inspect", "nowhere.onnx", shell=closed).code == 2


@pytest.mark.whole
def test_output_that_nobody_takes(tiny: Case) -> None:
    """Both what is printed at once and what waits in the buffer until the end."""
    for how in ([], ["--json"]):
        ran = process("inspect", str(tiny.model), *how, shell="> /dev/full")
        assert ran.code == 2
        assert ran.err == "taglio: input/output: the disk is full; the results of earlier stages are intact\n"
    command = [sys.executable, "-m", "taglio", "inspect", str(tiny.model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


@pytest.mark.whole
def test_a_terminal_with_few_letters(tmp_path: Path) -> None:
    model = conv_relu_chain()
    model.graph.name = "ünï→"
    path = saved(model, tmp_path, "ünï→")
    ran = process("inspect", str(path), PYTHONIOENCODING="ascii", COLUMNS="20", NO_COLOR="1", TERM="dumb")
    assert (ran.code, ran.err) == (0, "")
    assert "?: " in ran.out
    ran = process("inspect", str(path), "--json", PYTHONIOENCODING="ascii")
    assert ran.json()["model"] == "ünï→"


def test_a_name_that_is_not_utf8_is_refused_before_any_work(tiny: Case, tmp_path: Path) -> None:
    bad = os.fsdecode(bytes(tmp_path / "out") + b"\xff")
    refused(taglio("profile", *tiny.arguments(), "-o", bad), "not UTF-8: rename the file", r"\udcff")
    assert not [*tmp_path.iterdir()]


def test_names_with_line_breaks_stay_on_one_line(tmp_path: Path) -> None:
    refused(taglio("inspect", tmp_path / "no\nwhere.onnx"), "no where.onnx: no such file")
    assert "2 lines: " in taglio("inspect", saved(conv_relu_chain(), tmp_path, "2\nlines")).out


@pytest.mark.whole
def test_a_signal_stops_a_command_as_ctrl_c_does(tiny: Case, tmp_path: Path) -> None:
    """What it had begun is gone: the workspace, and its temporary folder."""
    (tmp_path / "tmp").mkdir()
    options = ("--max-error", "0.01", "--effort", "3", "-o", str(tmp_path / "out"))
    command = [sys.executable, "-m", "taglio", "optimize", *map(str, tiny.arguments()), *options]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env=ENVIRONMENT | {"TMPDIR": str(tmp_path / "tmp")}, text=True
    ) as running:
        while not [*(tmp_path / "tmp").glob(f"{PREFIX}*")] and running.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    assert said == "taglio: stopped; the results of earlier stages are intact\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tmp"]
    assert not [*(tmp_path / "tmp").glob(f"{PREFIX}*")]
