"""The commands with their options, as one table. Imports nothing that a command needs to run, and runs none."""

import argparse
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from taglio.cli.options import (
    OPTIONS,
    Facts,
    any_port,
    fraction,
    names,
    option,
    path,
    port,
    positive,
    positive_float,
    whole,
)
from taglio.cli.output import execute
from taglio.errors import BadOption

# The options that limit a plan, by the library's arguments; a limit without a name is on this metric.
LIMITS, UNNAMED = ("max_error", "min_score", "max_drop"), "relative-l2"
_ERROR = option("largest relative L2 change of any output (default 1%%)", type=fraction, default=0.01)
_ERROR_OF_SCHEME = option(
    "with --scheme auto: relative L2 error that the scheme is chosen for (default 1%%)", type=fraction, default=0.01
)
_METHODS = ("static", "float16", "int8-weights", "int8-dynamic", "int4-weights")
_BLOCKS = "{}: all, or name patterns"
_NAMES = option("as listed, such as openvino or torch", nargs="+", metavar="NAME")
_DEVICE = option("name of the device in the cluster file")
_BACKENDS = "onnxruntime,openvino,nncf,onnxsim,litert,pytorch,qkeras,keras"
_MODEL = "model --shape --requantize"
_DATA = "--data --preprocess --seed"
_LIMITS = "--max-latency --max-energy-j --min-rate --max-steps --keep-off --rate --with-model"
_LIMITED = "--max-error --min-score --max-drop"
_SOLVING = "--time-limit --gap"
_MEASURING = "--scheme --threads --runtime --portable --effort --memory-limit"
_BOUNDS = f"{_LIMITED} --metric --limit-on"
_OPTIMIZE = f"{_MODEL} --state {_DATA} --labels --calibration {_BOUNDS} --keep-float --force-int8 {_MEASURING}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command by its words: `run` is a function of a module of taglio.cli, `options` are names in OPTIONS, `own`
    those that are for this command alone or mean something else in it. `several` need --cluster, `one` exclude it, and
    `on_cluster` runs with it ("": `run` does). A command that takes limits `needs_limit` unless it does something else
    without one."""

    words: str
    run: str
    about: str
    options: str = ""
    own: Mapping[str, Facts] = field(default_factory=dict)
    several: str = ""
    one: str = ""
    epilog: str | None = None
    json: bool = True
    needs_limit: bool = True
    on_cluster: str = ""


_SPELLINGS = {"--out": ("-o", "--out"), "--http-port": ("--http-port", "--port")}
GROUPS = {
    "cluster": "start, stop, list and probe the devices of a cluster, or emulate one",
    "backends": "list, install and remove the other back ends of compare",
}
COMMANDS = (
    Command(
        "inspect",
        "models:inspect",
        "summarise a model: operators, blocks that can be int8, expected gain, and the command to optimise it",
        f"{_MODEL} --blocks",
        {
            "--blocks": option(
                _BLOCKS.format("also list blocks, with FLOPs, sizes and the reason to stay float"),
                nargs="?",
                const="all",
            )
        },
    ),
    Command(
        "quantize",
        "models:quantize",
        "quantise chosen blocks, without a plan",
        f"{_MODEL} {_DATA} --calibration --method --scheme --blocks --out",
        {
            "--method": option("quantisation method (default static)", choices=_METHODS, default="static"),
            "--scheme": option(
                "scheme of static int8 (default qdq-u8s8-asym-pc; on x86 without VNNI -rr is appended: 7-bit weights, "
                "whose sums do not saturate)"
            ),
            "--blocks": option(_BLOCKS.format("blocks to quantise"), default="all"),
            "--out": option("ONNX file to write", type=path, required=True),
        },
    ),
    Command(
        "quickstart",
        "flow:quickstart",
        "optimise the embedded digits model and show the result",
        "--out --max-error --verbose",
        {"--out": option("workspace directory", type=path, default=Path("out/quickstart")), "--max-error": _ERROR},
    ),
    Command(
        "optimize",
        "flow:optimize",
        "find the fastest form within an error limit: profile, plan, build, time, report",
        f"{_OPTIMIZE} --cluster --objective --out",
        {
            "--cpus": option("cores to use, on Linux (default: all that this process may use)", type=positive),
            "--time-limit": option(
                "finish within S seconds, with less effort, and deliver the best plan so far (limits below 30 s may be "
                "exceeded)",
                type=positive_float,
                dest="time_limit_s",
                metavar="S",
            ),
        },
        one="--max-latency --cpus --time-limit --no-samples --verbose",
        on_cluster="clusters:optimize",
    ),
    Command(
        "profile",
        "flow:profile",
        "time every block in every form, inside whole-model runs",
        f"{_MODEL} --state {_DATA} --labels --calibration {_MEASURING} --max-error --out",
        {"--max-error": _ERROR_OF_SCHEME},
    ),
    Command("error", "flow:error", "measure how each form of a block changes the outputs", "folder --metric --effort"),
    Command(
        "plan",
        "flow:plan",
        "choose the fastest forms within an error limit and time the finalists, as optimize does; with --cluster: "
        "place blocks on several machines, using their profiles, or show a front of such plans",
        f"folder {_LIMITED} --keep-float --force-int8 --cluster",
        several=f"--pin {_LIMITS} {_SOLVING} --objective --axes",
        one="--effort",
        on_cluster="clusters:plan",
    ),
    Command(
        "build",
        "flow:build",
        "write the plan's components, prove that they equal the whole model, and write deploy/; with a limit: plan "
        "again from what optimize measured, confirm the plan, and replace all that optimize wrote",
        f"folder {_LIMITED} --no-samples --verbose",
        needs_limit=False,
    ),
    Command(
        "run",
        "flow:run",
        "time the built components and compare with the prediction, or put deploy/ under load",
        "folder --runs --steps --cluster",
        {"--runtime": OPTIONS["--runtime of components"]},
        several="--stream",
        one="--runtime --load",
        on_cluster="clusters:run",
    ),
    Command(
        "check",
        "flow:check",
        "check that the promises of optimize still hold here: files, versions, settings, samples, error, speed",
        "folder --data",
        {"--data": option("measure the error on these inputs instead of the workspace's", type=path)},
        epilog="Exit code 5: a promise is broken. 6: none is broken, but one cannot be judged.",
    ),
    Command("report", "flow:report", "write the HTML report and print its tables", "folder"),
    Command(
        "cluster start",
        "devices:start",
        "start a device here (the first with --head) and wait until it has joined the cluster",
        "--name --head --address --host --port --threads --token --tls",
        {
            "--name": {**_DEVICE, "required": True},
            "--head": option("start the cluster; other devices join this one", action="store_true"),
            "--address": option("address of the head to join", metavar="HOST:PORT"),
            "--host": option("address to listen on (default 127.0.0.1: this machine only)", default="127.0.0.1"),
            "--port": option("port of the head (default 6379)", type=port, default=6379),
            "--token": option(
                "file with the secret shared by all devices (default ~/.ray/auth_token; the head creates it)",
                type=path,
                metavar="FILE",
            ),
            "--tls": option("encrypt all traffic, with tls.crt, tls.key and ca.crt in DIR", type=path, metavar="DIR"),
        },
    ),
    Command(
        "cluster stop", "devices:stop", "stop the devices running here, or one of them", "--name", {"--name": _DEVICE}
    ),
    Command(
        "cluster status",
        "clusters:status",
        "list the devices of the running cluster: alive or not, versions, runtimes, threads",
    ),
    Command(
        "cluster probe",
        "clusters:probe",
        "measure every link of the running cluster, and the CPU cost per message",
        "file --write",
        {
            "file": option("cluster file (TOML)", type=path, metavar="CLUSTER"),
            "--write": option("write a cluster file with the measured links", type=path, metavar="FILE"),
        },
    ),
    Command(
        "cluster emulate",
        "emulate:emulate",
        "run a command on a cluster emulated on this Linux machine (as root): devices have the file's CPU quotas, "
        "links its bandwidth and latency",
        "cluster --bare --on",
        {
            "cluster": option("cluster file (TOML)", type=path, metavar="CLUSTER"),
            "--bare": option("set up network and CPU quotas only; start no device", action="store_true"),
            "--on": option("run the command on this device instead of the start device", metavar="DEVICE"),
        },
        epilog="Write the command after --. Without one, the emulation runs until Ctrl-C.",
        json=False,
    ),
    Command(
        "export",
        "flow:export",
        "write deploy/ as a model repository of Triton or OpenVINO Model Server, or copy it unchanged",
        "folder --layout target",
        {
            "--layout": option(
                "plain (default: a copy of deploy/), triton or ovms; refused if the server would answer differently",
                choices=("plain", "triton", "ovms"),
                default="plain",
            ),
            "target": option("new directory to write", type=path, metavar="DIR"),
        },
    ),
    Command(
        "serve",
        "serve:serve",
        "serve built models by the Open Inference Protocol v2 (REST and gRPC)",
        "models --cluster --host --http-port --grpc-port --token-file --tls --queue --batch --max-request-mb --drain-s",
        {
            "models": option(
                "workspace directory, NAME=OUT, or a directory of them (NAME/ or NAME/VERSION/)",
                nargs="+",
                metavar="OUT",
            ),
            "--host": option("address to listen on; all but loopback need a token or TLS", default="127.0.0.1"),
            "--http-port": option("port of REST and metrics (default 8000; 0: any)", type=any_port, default=8000),
            "--grpc-port": option("port of gRPC (default 8001; 0: any)", type=any_port, default=8001),
            "--token-file": option(
                "file with the token that clients must send (default: $TAGLIO_SERVE_TOKEN, else none)", type=path
            ),
            "--tls": option(
                "certificate and key in PEM files; encrypts both listeners", nargs=2, type=path, metavar=("CERT", "KEY")
            ),
            "--threads": option(
                "threads of a run (default: the plan's; several models share the processors)", type=positive
            ),
            "--kernel-cache": option(
                "compiled kernels that OpenVINO keeps per model; fewer save memory, but repeated sizes may compile "
                "again (default: OpenVINO's own limit)",
                type=whole(0),
                metavar="KERNELS",
            ),
            "--queue": option("longest queue per model, in requests (default 64)", type=positive, default=64),
            "--batch": option(
                "largest batch, in rows, for models with a dynamic batch dimension (default: items that the plan "
                "joins; 8 for a plan for latency)",
                type=positive,
            ),
            "--max-request-mb": option("limit on request size, in MB (default 64)", type=positive_float, default=64.0),
            "--drain-s": option(
                "grace period for running requests at SIGTERM, in seconds (default 30)",
                type=positive_float,
                default=30.0,
            ),
        },
        one="--threads --kernel-cache",
    ),
    Command(
        "compare",
        "compare:compare",
        "run and quantise one model with every back end, measured side by side",
        f"model --shape {_DATA} --backends --max-error --threads --row-limit --memory-limit --effort --out",
        {
            "--backends": option(
                "back ends to measure, in this order", type=names, default=_BACKENDS, metavar="A,B,..."
            ),
            "--max-error": _ERROR,
            "--row-limit": option(
                "timeout per row, in seconds without output (default 300)",
                type=positive_float,
                dest="row_limit_s",
                default=300.0,
                metavar="S",
            ),
            "--out": option("output directory", type=path, required=True),
        },
    ),
    Command("backends list", "backends:show", "list the back ends, installed or not, with their disk space"),
    Command(
        "backends add",
        "backends:add",
        "install back ends, in environments with pinned versions",
        "names",
        {"names": _NAMES},
    ),
    Command("backends remove", "backends:remove", "remove installed back ends", "names", {"names": _NAMES}),
)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line like any other error: in one line, with the fix."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # -1% and -1GB are values too, which their options refuse.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but what a command does not know is reported with the command's own help."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = f"{self.prog} {options.command.words}"
            raise BadOption(f"{command} does not know {' '.join(unknown)}: see {command} --help")
        return options

    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}: see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; docs/cli.md is generated from it."""
    parser = _Parser(
        prog="taglio",
        description="Find the fastest mixed-precision form of a neural network that keeps its answers, and measure it.",
    )
    try:
        installed_version = version("taglio")
    except PackageNotFoundError:
        installed_version = "(not installed)"
    parser.add_argument("--version", action="version", version=f"taglio {installed_version}")
    commands: dict[str, Any] = {"": _commands(parser)}
    for command in COMMANDS:
        group, _, name = command.words.rpartition(" ")
        if group not in commands:
            commands[group] = _commands(_parser(commands[""], group, GROUPS[group]))
        _add_options(_parser(commands[group], name, command.about, command.epilog), command)
    return parser


def _commands(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(title="commands", required=True, metavar="COMMAND")


def _parser(commands: Any, name: str, about: str, epilog: str | None = None) -> argparse.ArgumentParser:
    description = f"{about[0].upper()}{about[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=description, epilog=epilog)
    return parser


def _add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    def add(options: str) -> list[argparse.Action]:
        return [
            parser.add_argument(*_SPELLINGS.get(name, (name,)), **(command.own.get(name) or OPTIONS[name]))
            for name in options.split()
        ]

    add(command.options)
    parser.set_defaults(command=command, one=add(command.one), several=add(command.several))
    add("--json" if command.json else "")


def run(options: argparse.Namespace) -> int:
    """Run the command that was parsed; returns its exit code. Raises BadOption for options that need --cluster but did
    not get it, or the reverse."""
    command = options.command
    if command.needs_limit and _LIMITED in command.options and all(getattr(options, name) is None for name in LIMITS):
        task = "for a task --metric NAME with --max-drop 1% or --min-score 99%"
        raise BadOption(f"nothing is limited: give --max-error 1%, or {task}")
    alone = getattr(options, "cluster", None) is None
    for action in options.several if alone else options.one:
        if getattr(options, action.dest) != action.default:
            machines, fix = (
                ("several machines", "add --cluster FILE") if alone else ("one machine", "leave --cluster out")
            )
            raise BadOption(f"{action.option_strings[0]} is for {machines}: {fix}")
    module, _, function = (command.run if alone else command.on_cluster or command.run).partition(":")
    return execute(getattr(importlib.import_module(f"taglio.cli.{module}"), function), options)


def arguments(options: argparse.Namespace, without: Sequence[str] = ()) -> dict[str, Any]:
    """The library's arguments among parsed `options` and the progress callback, except those named in `without` and
    those not given."""
    ours = {"command", "after", "one", "several", "json", "verbose", "model", "data", "out", "folder", "cluster"}
    ours |= {"steers", *without}
    values = {name: value for name, value in vars(options).items() if name not in ours and value is not None}
    first = getattr(options, "steers", None)
    if first and getattr(options, "metric", "") is None:  # the first limit on the command line steers
        for name in LIMITS:
            if name in values:
                bounds = values[name] if isinstance(values[name], dict) else {"": values[name]}
                values[name] = {metric or UNNAMED: value for metric, value in bounds.items()}
        values["metric"] = first
    return values
