"""Arguments shared by several commands, and parsing of their text. Runs no command."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from taglio.errors import BadOption

_MOST_THREADS = 64
MODELS = (
    "an .onnx, .keras, .h5, .tflite or .pt2 file, the directory of a SavedModel or of a Hugging Face model, or a "
    "PyTorch module:function"
)
INTERRUPTED = 130  # the exit code after Ctrl-C


def command(commands: Any, name: str, help_text: str, function: Any) -> argparse.ArgumentParser:
    """Add a command called `name` that runs `function`; returns its parser."""
    each: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
    )
    each.set_defaults(command=function)
    return each


def group_of(commands: Any, name: str, help_text: str) -> Any:
    """Add a command with subcommands; returns the object to add them to."""
    each = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
    return each.add_subparsers(title="commands", required=True, metavar="COMMAND")


class Some:
    """Options of a command that are valid only with --cluster, or only without it."""

    def __init__(self, each: argparse.ArgumentParser, which: str) -> None:
        self._parser, self._actions = each, list[argparse.Action]()
        each.set_defaults(**{which: self._actions})

    def add_argument(self, *names: str, **how: Any) -> None:
        """Like `ArgumentParser.add_argument`."""
        self._actions.append(self._parser.add_argument(*names, **how))


WITH, WITHOUT = "with_cluster", "without_cluster"


def refuse_others(options: argparse.Namespace) -> None:
    """Raise BadOption for options that need --cluster but did not get it, or the reverse."""
    which, fix = (WITH, "add --cluster FILE") if options.cluster is None else (WITHOUT, "leave --cluster out")
    for action in getattr(options, which, ()):
        if getattr(options, action.dest) != action.default:
            others = "several machines" if options.cluster is None else "one machine"
            raise BadOption(f"{action.option_strings[0]} is for {others}: {fix}")


def model_argument(each: argparse.ArgumentParser) -> None:
    """Add MODEL and --shape."""
    each.add_argument("model", type=Path, metavar="MODEL", help=MODELS)
    each.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1x3x224x224",
        help="shape of an input (repeatable; default: from the data)",
    )


def requantize_argument(each: argparse.ArgumentParser) -> None:
    """Add --requantize."""
    each.add_argument(
        "--requantize",
        action="store_true",
        help="convert weights and operators that are already quantised back to float first (default: keep them)",
    )


def state_argument(each: argparse.ArgumentParser) -> None:
    """Add --state."""
    each.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="OUTPUT=INPUT",
        help="output that is an input of the next step (repeatable; taglio inspect suggests them); --data then holds "
        "the other inputs of consecutive steps",
    )


def data_arguments(each: argparse.ArgumentParser) -> None:
    """Add --data, --preprocess, --seed."""
    each.add_argument(
        "--data",
        type=Path,
        required=True,
        help="inputs: a directory of images or wav files (optionally a subdirectory per class) or of .npz; an .npz or "
        ".npy file; texts, one per line (.txt) or in a column (.csv); a dataset saved by Hugging Face datasets",
    )
    each.add_argument(
        "--preprocess",
        default="",
        metavar="SPEC",
        help="for images: rgb|bgr|gray, mean=M, scale=S, nchw|nhwc, stretch|letterbox|crop|crop=SHORT_SIDE, size=HxW, "
        "bilinear|bicubic|lanczos|nearest; value = (pixel - mean) x scale; for sounds: rate=HZ, normalize (default: as "
        "preprocessor_config.json beside MODEL says)",
    )
    each.add_argument("--seed", type=natural, default=0, help="random seed")


def labels_argument(each: argparse.ArgumentParser) -> None:
    """Add --labels."""
    each.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="one label per sample, if --data has none: .txt (one per line), .json (a list, or an object by "
        "file name, of texts, numbers, or boxes as x1, y1, x2, y2, class), .csv (label, or file name and label), .npy "
        "or .npz (default: the .txt beside DATA with the same name)",
    )


def calibration_argument(each: argparse.ArgumentParser) -> None:
    """Add --calibration."""
    each.add_argument(
        "--calibration",
        type=Path,
        metavar="DATA",
        help="separate calibration data; all of --data is then held out (default: a part of --data)",
    )


def bound_argument(each: argparse.ArgumentParser, default: float | None) -> None:
    """Add --max-error; with a `default` it is one number, on relative L2; without, it is required and repeatable."""
    if default is not None:
        text = "largest relative L2 change of any output, such as 0.01 or 1%%"
        each.add_argument("--max-error", type=fraction, default=default, help=text)
        return
    each.add_argument(
        "--max-error",
        action=_Bounds,
        required=True,
        metavar="[METRIC=]LIMIT",
        help="limit on the relative L2 error of any output, such as 0.01 or 1%%; on sqnr, cosine or a function: the "
        "worst value; on a task (top1, ctc, ...): how much worse than float, such as 1%%, or the worst value, such as "
        "99%%; METRIC= limits another metric too, such as ctc=1%% (repeatable)",
    )


class _Bounds(argparse.Action):
    """Keeps LIMIT as a number; with METRIC=LIMIT a dict of all limits by metric, "" for the unnamed one."""

    def __call__(self, _parser: Any, options: Any, values: Any, _option: str | None = None) -> None:
        name, _, text = str(values).rpartition("=")
        try:
            limit = fraction(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        known = options.max_error
        limits = dict(known) if isinstance(known, dict) else {} if known is None else {"": known}
        if name in limits:
            hint = "" if name else ": name the metric of the other, such as ctc=1%"
            raise argparse.ArgumentError(self, f"is given twice{f' for {name}' if name else ''}{hint}")
        limits[name] = limit
        options.max_error = limit if [*limits] == [""] else limits


def metric_argument(each: argparse.ArgumentParser) -> None:
    """Add --metric."""
    each.add_argument(
        "--metric",
        metavar="NAME",
        help="error metric: relative-l2 (default), l2-per-size, sqnr (dB), cosine; a task (top1, tokens, detection, "
        "segmentation, ctc, similarity, recall, perplexity, r2), scored against labels if there are any, else against "
        "the float model's answers, with parameters such as detection:iou=0.5,score=0.25, ctc:blank=0 or recall:k=10; "
        "or module:function (also from the current directory; called with the outputs by name and the labels; returns "
        "a number, larger is better unless the function has an attribute smaller_is_better)",
    )


def provider_argument(each: argparse.ArgumentParser) -> None:
    """Add --provider."""
    each.add_argument(
        "--provider",
        choices=("cpu", "cuda", "auto"),
        default="cpu",
        help="execution provider for measuring the error; auto uses a GPU if ONNX Runtime supports it (default cpu: "
        "the int8 kernels that a plan runs)",
    )


def pin_arguments(each: argparse.ArgumentParser) -> None:
    """Add --keep-float and --force-int8."""
    each.add_argument(
        "--keep-float", action="append", default=[], metavar="PATTERN", help="keep these blocks in float (repeatable)"
    )
    each.add_argument(
        "--force-int8", action="append", default=[], metavar="PATTERN", help="force these blocks to int8 (repeatable)"
    )


def measuring_arguments(each: argparse.ArgumentParser) -> None:
    """Add the options of how sessions run and how long is measured."""
    each.add_argument(
        "--scheme",
        default="auto",
        help="int8 scheme such as qdq-u8s8-asym-pc, or auto: measure several for --max-error",
    )
    each.add_argument("--threads", type=thread_count, default=None, help="threads per session (default: all cores)")
    each.add_argument("--spinning", action="store_true", help="let ONNX Runtime threads spin (dedicated machine)")
    each.add_argument(
        "--optimization",
        choices=("basic", "extended", "all"),
        default="all",
        help="ONNX Runtime graph optimisation level (default all)",
    )
    runtime_argument(each, "auto")
    effort_argument(each)
    each.add_argument(
        "--memory-limit",
        type=memory_size,
        metavar="SIZE",
        help="memory that this process may use, such as 8GB (default: half of the free memory)",
    )


def runtime_argument(each: argparse.ArgumentParser | Some, default: str | None) -> None:
    """Add --runtime; `default` None means the runtime that the components were built for."""
    places = ("onnxruntime", "openvino", "openvino-bf16")
    told = "default auto: time all installed ones and pick the fastest" if default else "default: as built"
    each.add_argument(
        "--runtime",
        default=default,
        choices=("auto", *places) if default else places,
        help=f"runtime that runs the model; openvino-bf16 computes float parts in bfloat16 ({told})",
    )


def effort_argument(each: argparse.ArgumentParser | Some) -> None:
    """Add --effort."""
    each.add_argument("--effort", type=positive_float, default=1.0, help="scale the time spent measuring (default 1)")


def folder_argument(each: argparse.ArgumentParser) -> None:
    """Add OUT, a workspace directory."""
    each.add_argument("folder", type=Path, metavar="OUT", help="workspace directory")


def json_argument(each: argparse.ArgumentParser) -> None:
    """Add --json."""
    each.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be at least 0")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number") from None


def _number(text: str) -> float:
    """NaN where `text` is no number: all limits refuse it."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def thread_count(text: str) -> int:
    """Parse a number of threads, limited to a sensible maximum: starting a hundred thousand takes minutes."""
    value, cores = positive(text), os.cpu_count() or 1
    most = max(_MOST_THREADS, 4 * cores)
    if value > most:
        raise argparse.ArgumentTypeError(f"{text} is more than the maximum of {most} (this machine has {cores} cores)")
    return value


def port(text: str) -> int:
    """Parse a port number."""
    value = positive(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"{text} must be at most 65535")
    return value


def any_port(text: str) -> int:
    """Parse a port number, or 0 for any free one."""
    return 0 if text == "0" else port(text)


def positive_float(text: str) -> float:
    """Parse a finite number above 0."""
    value = _number(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0")
    return value


def memory_size(text: str) -> int:
    """Parse a size such as 8GB, 500MB or 1.5GiB; returns bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?) *([kmgt]?)(i?)b?", text.strip().lower())
    value = 0
    if match is not None:
        value = int(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))
    if not 1 <= value < 2**60:
        raise argparse.ArgumentTypeError(f"{text} is not a size: give 8GB or 500MB")
    return value


def fraction(text: str) -> float:
    """Parse a number such as 0.01, or a percentage such as 1%."""
    value = _number(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number of at least 0, such as 0.01 or 1%")
    return value


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by input from INPUT=1x3x224x224. Raises BadOption."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        try:
            shapes[name] = tuple(int(size) for size in sizes.lower().split("x"))
        except ValueError:
            shapes[name] = ()
        if not name or not shapes[name] or min(shapes[name]) < 0:
            raise BadOption(f'--shape "{text}": write INPUT=1x3x224x224 with sizes of 0 or more')
    return shapes


# Options named like the library's arguments; for others, the argument's name.
_SAME = (
    *(
        "calibration",
        "labels",
        "preprocess",
        "metric",
        "seed",
        "threads",
        "spinning",
        "optimization",
        "runtime",
        "requantize",
    ),
    *("scheme", "max_error", "keep_float", "force_int8", "keep_off", "max_energy_j", "effort", "scenario", "objective"),
    *("explain", "gap", "running", "memory_limit", "state", "max_steps"),
)
_RENAMED = {
    "pin": "pins",
    "cut": "cuts",
    "rate": "rate_per_s",
    "min_rate": "min_rate_per_s",
    "time_limit": "time_limit_s",
    "what_if": "changes",
}


def given(options: argparse.Namespace, *without: str) -> dict[str, Any]:
    """The library's arguments from the command-line options; `without` are options for another function."""
    found = {name: name for name in _SAME} | _RENAMED
    result = {
        argument: getattr(options, name)
        for name, argument in found.items()
        if name not in without and getattr(options, name, None) is not None
    }
    if "shape" in options:
        result["shapes"] = shapes(options.shape)
    for name in ("max_latency", "switching_cost"):
        if getattr(options, f"{name}_ms", None) is not None and name not in without:
            result[f"{name}_s"] = getattr(options, f"{name}_ms") / 1e3
    return result


def remark(text: str) -> None:
    """Print a line on standard error, beside the result; nothing if `text` is empty."""
    if text:
        sys.stderr.write(f"taglio: {text}\n")


def emit(value: Any) -> int:
    """Print one JSON object; returns the exit code."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    return 0
