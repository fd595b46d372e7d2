"""The command line: parse, call one function, print, exit code. Decides nothing."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from taglio.errors import BadOption, TaglioError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 only on success)."""
    try:
        options = build_parser().parse_args(arguments)
        code = options.command(options)
    except TaglioError as error:
        sys.stderr.write(f"taglio: {type(error).__name__}: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("taglio: stopped; what earlier stages wrote is intact\n")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        sys.stderr.write("taglio: out of memory: use a smaller model, or fewer --data samples\n")
        return 2
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        sys.stderr.write(f"taglio: {error.filename or 'input/output'}: {why}; what earlier stages wrote is intact\n")
        return 2
    return int(code or 0)


class _Parser(argparse.ArgumentParser):
    """Refuses a wrong command line as everything else is refused: in one line, with the fix."""

    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}: see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; docs/cli.md is made from it."""
    parser = _Parser(
        prog="taglio",
        description="Find the fastest mixed-precision form of a neural network that keeps its answers, and prove it.",
    )
    parser.add_argument("--version", action="version", version=f"taglio {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    each = _command(commands, "quickstart", "optimise the embedded digits model and show what happened", _quickstart)
    each.add_argument("-o", "--out", type=Path, default=Path("out/quickstart"), help="folder for every artifact")
    _bound(each, 0.01)
    _json(each)

    each = _command(
        commands, "inspect", "blocks, FLOPs, weights and tensor bytes; what can be int8 and why not", _inspect
    )
    _model(each)
    each.add_argument("--blocks", default="all", help="show only: all, top-flops:K, top-bytes:K, or name patterns")
    _json(each)

    each = _command(commands, "optimize", "the whole flow: profile, error, plan, build, time, report", _optimize)
    _model(each)
    _data(each)
    _bound(each, None)
    _pins(each)
    _measuring(each)
    each.add_argument("-o", "--out", type=Path, required=True, help="folder for every artifact")
    _json(each)

    each = _command(commands, "profile", "measure seconds per block and precision, by whole-model runs", _profile)
    _model(each)
    _data(each)
    _measuring(each)
    each.add_argument(
        "--layers",
        choices=("upstream", "downstream"),
        help="also time every layer alone, cut before or behind the QuantizeLinear of its input, for comparison",
    )
    each.add_argument("-o", "--out", type=Path, required=True, help="folder for every artifact")
    _json(each)

    each = _command(commands, "error", "measure and fit how any subset in int8 changes the output", _error)
    _folder(each)
    _effort(each)
    _json(each)

    each = _command(
        commands, "plan", "solve for the fastest precisions under the error bound, then measure its error", _plan
    )
    _folder(each)
    _bound(each, None)
    _pins(each)
    each.add_argument(
        "--pin", action="append", default=[], metavar="DEVICE=PATTERN", help="run these blocks on DEVICE (repeatable)"
    )
    each.add_argument(
        "--cut", action="append", default=[], metavar="TENSOR", help="start the next device behind TENSOR (repeatable)"
    )
    each.add_argument("--devices", default="", metavar="A,B,...", help="names of the devices that --cut separates")
    _json(each)

    each = _command(commands, "build", "write the plan's components and prove that they equal the whole model", _build)
    _folder(each)
    _json(each)

    each = _command(commands, "run", "run the built components; predicted beside measured", _run)
    _folder(each)
    each.add_argument("--runs", type=_positive, default=100, help="inferences to time (default 100)")
    _json(each)

    each = _command(commands, "report", "write the HTML page and print the tables", _report)
    _folder(each)
    _json(each)

    each = _command(commands, "quantize", "quantise chosen blocks under one scheme, without a plan", _quantize)
    _model(each)
    _data(each)
    each.add_argument(
        "--method", choices=("static", "dynamic", "float16"), default="static", help="how (default static)"
    )
    each.add_argument("--scheme", help="int8 form (default qdq-u8s8-asym-pc; for dynamic qdq-u8s8-asym-pt)")
    each.add_argument("--blocks", default="all", help="all, top-flops:K, top-bytes:K, or name patterns")
    each.add_argument(
        "--also", action="append", default=[], metavar="SCHEME=PATTERN", help="other blocks under another scheme"
    )
    each.add_argument("-o", "--out", type=Path, required=True, help="the .onnx file to write")
    _json(each)
    return parser


def _command(commands: Any, name: str, help_text: str, function: Any) -> argparse.ArgumentParser:
    each: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
    )
    each.set_defaults(command=function)
    return each


def _model(each: argparse.ArgumentParser) -> None:
    each.add_argument("model", type=Path, metavar="MODEL", help="the ONNX file")
    each.add_argument(
        "--shape", action="append", default=[], metavar="INPUT=1x3x224x224", help="fix an input's shape (repeatable)"
    )


def _data(each: argparse.ArgumentParser) -> None:
    each.add_argument("--data", type=Path, required=True, help="a folder of images, an .npz or an .npy")
    each.add_argument(
        "--preprocess",
        default="",
        metavar="SPEC",
        help="for images: rgb|bgr|gray, mean=M, scale=S, nchw|nhwc, stretch|letterbox; value = (pixel - mean) x scale",
    )
    each.add_argument("--seed", type=int, default=0, help="of the calibration / held-out split and of all sampling")


def _bound(each: argparse.ArgumentParser, default: float | None) -> None:
    each.add_argument(
        "--max-error",
        type=_fraction,
        default=default,
        required=default is None,
        help="largest relative L2 change of any output, such as 0.01 or 1%%",
    )


def _pins(each: argparse.ArgumentParser) -> None:
    each.add_argument("--keep-float", action="append", default=[], metavar="PATTERN", help="blocks never quantised")
    each.add_argument("--force-int8", action="append", default=[], metavar="PATTERN", help="blocks always quantised")


def _measuring(each: argparse.ArgumentParser) -> None:
    each.add_argument("--scheme", default="auto", help="int8 form such as qdq-u8s8-asym-pc, or auto: measure and pick")
    each.add_argument("--threads", type=_positive, default=None, help="threads of a session (default: all cores)")
    each.add_argument("--spinning", action="store_true", help="let idle threads spin, as a lone server would")
    each.add_argument(
        "--optimization",
        choices=("basic", "extended", "all"),
        default="all",
        help="graph optimisation level (default all)",
    )
    _effort(each)


def _effort(each: argparse.ArgumentParser) -> None:
    each.add_argument(
        "--effort", type=_positive_float, default=1.0, help="scales the time given to measuring (default 1)"
    )


def _folder(each: argparse.ArgumentParser) -> None:
    each.add_argument("folder", type=Path, metavar="OUT", help="the folder that the stage before wrote")


def _json(each: argparse.ArgumentParser) -> None:
    each.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _fraction(text: str) -> float:
    try:
        value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number: give 0.01 or 1%") from None
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not at least 0: give 0.01 or 1%")
    return value


def _shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        try:
            shapes[name] = tuple(int(size) for size in sizes.lower().split("x"))
        except ValueError:
            shapes[name] = ()
        if not name or not shapes[name] or min(shapes[name]) < 1:
            raise BadOption(f'--shape "{text}": write INPUT=1x3x224x224 with sizes of at least 1')
    return shapes


def _setup(options: argparse.Namespace) -> Any:
    from taglio.profile.machine import available_cores
    from taglio.scheme import parse_scheme
    from taglio.workspace import Setup

    return Setup(
        str(options.model.resolve()),
        _shapes(options.shape),
        str(options.data.resolve()),
        options.preprocess,
        options.seed,
        options.threads or available_cores(),
        options.spinning,
        options.optimization,
        None if options.scheme == "auto" else parse_scheme(options.scheme),
    )


def _limits(graph: Any, options: argparse.Namespace) -> Any:
    from taglio.plan.result import Limits
    from taglio.plan.solve import pinned

    if graph is None:
        return Limits(options.max_error)
    return pinned(graph, options.max_error, options.keep_float, options.force_int8)


def _quickstart(options: argparse.Namespace) -> int:
    from taglio.embedded import digits_data, digits_model

    arguments = ["optimize", str(digits_model()), "--data", str(digits_data()), "--max-error", str(options.max_error)]
    arguments += ["-o", str(options.out)] + (["--json"] if options.json else [])
    inner = build_parser().parse_args(arguments)
    return int(inner.command(inner))


def _inspect(options: argparse.Namespace) -> int:
    from taglio import model
    from taglio.graph import build, select
    from taglio.report import terminal

    loaded = model.load(options.model, _shapes(options.shape))
    graph = build(loaded)
    shown = None if options.blocks == "all" else set(select(graph, options.blocks))
    if options.json:
        return _print({"model": loaded.name, "sha256": loaded.sha256, "opset": loaded.opset, "graph": graph})
    terminal.inspect(loaded, graph, shown)
    return 0


def _optimize(options: argparse.Namespace) -> int:
    from taglio import model
    from taglio.graph import build
    from taglio.optimize import optimize
    from taglio.report import page, terminal
    from taglio.report.progress import bar

    setup = _setup(options)
    graph = build(model.load(options.model, setup.shapes)) if options.keep_float or options.force_int8 else None
    with bar(options.json) as progress:
        outcome = optimize(options.out, setup, _limits(graph, options), effort=options.effort, progress=progress)
    page.write(options.out)
    if options.json:
        return _print(terminal.summary(options.out, outcome))
    terminal.outcome(options.out, outcome)
    return 0


def _profile(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from taglio import artifact, workspace
    from taglio.choose_scheme import choose
    from taglio.optimize import layers_stage, profile_stage
    from taglio.report import terminal
    from taglio.report.progress import bar

    setup = _setup(options)
    with bar(options.json) as progress:
        work = workspace.create(options.out, setup)
        scheme = setup.scheme or choose(work, 0.01, progress=progress)[0]
        result = profile_stage(work, scheme, work.builder(scheme, progress), options.effort, progress)
        chosen = replace(setup, scheme=scheme)
        artifact.save(options.out / f"{workspace.SETUP}.json", workspace.SETUP, work.model.sha256, chosen)
        layers = layers_stage(work, scheme, options.layers, progress) if options.layers else None
    if options.json:
        return _print({"profile": result, "layers": layers} if layers else result)
    terminal.profile(work.graph, result, layers)
    return 0


def _error(options: argparse.Namespace) -> int:
    from taglio.optimize import error_stage, open_switchable
    from taglio.report import terminal
    from taglio.report.progress import bar
    from taglio.stages import reopen_profiled

    with bar(options.json) as progress:
        work, measured = reopen_profiled(options.folder)
        builder = work.builder(measured.scheme, progress)
        switchable = open_switchable(work, builder, measured.scheme)
        result = error_stage(work, measured.scheme, switchable, effort=options.effort, progress=progress)
    if options.json:
        return _print(result)
    terminal.error(work.graph, result)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from taglio.report import terminal
    from taglio.report.progress import bar
    from taglio.stages import plan

    with bar(options.json) as progress:
        names = [name for name in options.devices.split(",") if name]
        _, result = plan(
            options.folder,
            lambda graph: _limits(graph, options),
            pins=options.pin,
            cuts=options.cut,
            devices=names,
            progress=progress,
        )
    if options.json:
        return _print(result)
    terminal.plan(result)
    return 0


def _build(options: argparse.Namespace) -> int:
    from taglio.report import terminal
    from taglio.report.progress import bar
    from taglio.stages import build

    with bar(options.json) as progress:
        manifest, proof = build(options.folder, progress)
    if options.json:
        return _print({"manifest": manifest, "proof": proof})
    terminal.build(options.folder, manifest, proof)
    return 0


def _run(options: argparse.Namespace) -> int:
    from taglio.report import terminal
    from taglio.report.progress import bar
    from taglio.stages import run

    with bar(options.json) as progress:
        result = run(options.folder, options.runs, progress)
    if options.json:
        return _print(result)
    terminal.run(result)
    return 0


def _report(options: argparse.Namespace) -> int:
    from taglio.report import page, terminal

    path = page.write(options.folder)
    if options.json:
        return _print({"report": str(path)})
    terminal.say(f"wrote {path}")
    return 0


def _quantize(options: argparse.Namespace) -> int:
    from taglio.report import terminal
    from taglio.report.progress import bar
    from taglio.stages import quantize

    options.scheme = options.scheme or f"qdq-u8s8-asym-{'pt' if options.method == 'dynamic' else 'pc'}"
    options.threads, options.spinning, options.optimization = 1, False, "all"
    with bar(options.json) as progress:
        result = quantize(_setup(options), options.method, options.blocks, options.also, options.out, progress)
    if options.json:
        return _print(result)
    terminal.quantized(result)
    return 0


def _print(value: Any) -> int:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    return 0


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("taglio")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
