"""Every option of the command line, and how its text is parsed. Runs no command.

An option is stored under the name of the library's argument, so that a command passes on what it was given.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taglio.ways.demand import Demand

# Larger ones are mistakes, and some would not fit where they end up: in artifacts, in the kernel's timeouts.
_MOST_WHOLE, _MOST_NUMBER = 2**31 - 1, 1e9


def whole(least: int, most: int = _MOST_WHOLE) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} must be a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} must be at most {most}")
        return value

    return parse


positive, natural = whole(1), whole(0)
port, any_port = whole(1, 65535), whole(0, 65535)  # 0: any free one


def path(text: str) -> Path:
    """A path. An empty one is a variable that is not set, and would name the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, but is empty")
    return Path(text)


def positive_float(text: str) -> float:
    """Parse a finite number above 0."""
    value = _number(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0")
    return value


def _number(text: str) -> float:
    """`text` as a number; NaN, which every range check refuses, if it is not one. Raises ArgumentTypeError for more
    than the maximum."""
    try:
        value = float(text)
    except ValueError:
        return float("nan")
    if _MOST_NUMBER < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be at most {_MOST_NUMBER:,.0f}")
    return value


def duration(text: str) -> float:
    """Parse a time such as 50ms or 0.5s; returns seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d*)?) *(us|ms|s)", text.strip().lower())
    value = 0.0 if match is None else float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]
    if value <= 0.0:
        raise argparse.ArgumentTypeError(f"{text} is not a time with its unit: give 50ms or 0.5s")
    return value


def memory_size(text: str) -> int:
    """Parse a size such as 8GB, 500MB or 1.5GiB; returns bytes."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d*)?) *([kmgt]?)(i?)b?", text.strip().lower())
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


def demand(text: str) -> Demand:
    """Parse requests at random: a share of the capacity such as 80%, or a rate such as 200/s."""
    number = _number(text.removesuffix("%").removesuffix("/s"))
    if not 0.0 < number < float("inf") or not text.endswith(("%", "/s")):
        raise argparse.ArgumentTypeError(f"{text} must be a share of the capacity such as 80%, or a rate such as 200/s")
    return Demand(number / 100.0, is_share=True) if text.endswith("%") else Demand(number, is_share=False)


def names(text: str) -> list[str]:
    """Parse names separated by commas."""
    return [name for name in text.split(",") if name]


class _Shape(argparse.Action):
    """Collects INPUT=1x3x224x224 as a dict of shapes by input."""

    def __call__(self, _parser: Any, options: Any, values: Any, _option: str | None = None) -> None:
        name, _, sizes = str(values).rpartition("=")
        try:
            shape = tuple(int(size) for size in sizes.lower().split("x"))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 0 or max(shape) > _MOST_WHOLE:
            sizes = f"sizes of 0 or more, at most {_MOST_WHOLE:,}"
            raise argparse.ArgumentError(self, f'"{values}": write INPUT=1x3x224x224 with {sizes}')
        options.shapes = {**options.shapes, name: shape}


class _Bounds(argparse.Action):
    """Keeps LIMIT as a number; with METRIC=LIMIT a dict of all limits by metric, "" for the unnamed one. The metric of
    the first limit on the command line is kept in `steers`."""

    def __call__(self, _parser: Any, options: Any, values: Any, _option: str | None = None) -> None:
        name, _, text = str(values).rpartition("=")
        try:
            limit = fraction(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        previous = getattr(options, self.dest)
        limits = dict(previous) if isinstance(previous, dict) else {} if previous is None else {"": previous}
        if name in limits:
            hint = "" if name else ": name the metric of the other, such as ctc=1%"
            raise argparse.ArgumentError(self, f"is given twice{f' for {name}' if name else ''}{hint}")
        limits[name] = limit
        setattr(options, self.dest, limit if [*limits] == [""] else limits)
        options.steers = name if getattr(options, "steers", None) is None else options.steers


Facts = Mapping[str, Any]  # what argparse's add_argument takes


def option(text: str, **how: Any) -> Facts:
    """An option that is explained by `text`."""
    return {"help": text, **how}


_FLAG = {"action": "store_true"}
_LIST: Facts = {"action": "append", "default": []}
_PLACES = ("onnxruntime", "openvino")
_RUNTIME = "runtime that runs the model (default {})"

# The variants of an option that has another meaning in some commands are in parser.py, with the command.
OPTIONS: dict[str, Facts] = {
    "model": option(
        "an .onnx, .keras, .h5, .tflite or .pt2 file, the directory of a SavedModel or of a Hugging Face model, "
        "or a PyTorch module:function",
        type=path,
        metavar="MODEL",
    ),
    "folder": option("workspace directory", type=path, metavar="OUT"),
    "--out": option("workspace directory", type=path, default=Path("out")),
    "--no-samples": option("leave samples out of deploy/, for private data", action="store_false", dest="samples"),
    "--json": option("print one JSON object instead of tables", **_FLAG),
    "--verbose": option("print every table and note, not only the answer", **_FLAG),
    "--shape": option(
        "shape of an input whose sizes the model leaves open (repeatable; default: from the data)",
        action=_Shape,
        dest="shapes",
        default={},
        metavar="INPUT=1x3x224x224",
    ),
    "--requantize": option("fold quantise/dequantise pairs of the model to float first (default: keep them)", **_FLAG),
    "--state": option(
        "output that is an input of the next step (repeatable; taglio inspect suggests them); --data then holds "
        "the other inputs of consecutive steps",
        **_LIST,
        metavar="OUTPUT=INPUT",
    ),
    "--data": option(
        "inputs: a directory of images, wav files or .npz; an .npz or .npy; texts (.txt, .csv); a saved Hugging Face "
        "dataset",
        type=path,
        required=True,
    ),
    "--preprocess": option(
        "images: rgb|bgr|gray, mean=M, scale=S, nchw|nhwc, stretch|letterbox|crop|crop=SHORT_SIDE, size=HxW, "
        "bilinear|bicubic|lanczos|nearest; value = (pixel - mean) x scale; sounds: rate=HZ, normalize (default: from "
        "preprocessor_config.json)",
        default="",
        metavar="SPEC",
    ),
    "--seed": option("random seed (default 0)", type=natural, default=0),
    "--labels": option(
        "one label per sample, if --data has none: .txt, .json, .csv, .npy or .npz",
        type=path,
        metavar="FILE",
    ),
    "--calibration": option(
        "separate calibration data; all of --data is then held out (default: up to half of --data)",
        type=path,
        metavar="DATA",
    ),
    "--max-error": option(
        "limit on an error (smaller is better), such as 1%%; METRIC= limits another metric (repeatable). The "
        "first limit steers the plan",
        action=_Bounds,
        metavar="[METRIC=]LIMIT",
    ),
    "--min-score": option(
        "lowest score allowed (larger is better): of a task (top1, ctc, ...), such as 99%%, of sqnr or of a function "
        "(repeatable with METRIC=)",
        action=_Bounds,
        metavar="[METRIC=]SCORE",
    ),
    "--max-drop": option(
        "largest drop allowed in the score of a task or function, from the float model's, such as 1%% (repeatable with "
        "METRIC=)",
        action=_Bounds,
        metavar="[METRIC=]DROP",
    ),
    "--metric": option(
        "error metric: relative-l2 (default), sqnr, cosine; a task (top1, tokens, detection, "
        "segmentation, ctc, similarity, recall, perplexity, r2); or module:function (also from the current directory)",
        metavar="NAME",
    ),
    "--limit-on": option(
        "scope of --max-error: pool, the error over all held-out inputs (default), or worst-input, the error of every "
        "single input",
        choices=("pool", "worst-input"),
        default="pool",
    ),
    "--keep-float": option(
        "keep blocks or operators with these names in float, such as '*head*' (repeatable)", **_LIST, metavar="PATTERN"
    ),
    "--force-int8": option(
        "force blocks or operators with these names to int8, such as 'conv*' (repeatable)", **_LIST, metavar="PATTERN"
    ),
    "--scheme": option(
        "int8 scheme such as qdq-u8s8-asym-pc, or auto (default): measure several and choose the best for --max-error",
        default="auto",
    ),
    "--threads": option(
        "threads of a run (default: all cores that this process may use; optimize takes one, half or all, whichever is "
        "fastest)",
        type=whole(1, 1024),  # starting a hundred thousand takes minutes
    ),
    "--portable": option(
        "use only forms with equal results on every processor: 7-bit weights if sums of 8-bit weights saturate on x86 "
        "without VNNI, and no bfloat16",
        **_FLAG,
    ),
    "--runtime": option(
        _RUNTIME.format("auto: time all installed ones and pick the fastest"),
        default="auto",
        choices=("auto", *_PLACES),
    ),
    "--runtime of components": option(_RUNTIME.format("that of the plan"), choices=_PLACES),
    "--effort": option("scale the time spent measuring (default 1)", type=positive_float, default=1.0),
    "--memory-limit": option(
        "memory that this process may use, such as 8GB (default: half of the free memory)",
        type=memory_size,
        metavar="SIZE",
    ),
    "--pin": option("place these blocks on DEVICE (repeatable)", **_LIST, dest="pins", metavar="DEVICE=PATTERN"),
    "--cluster": option("cluster file (TOML): devices to plan for or to run on", type=path),
    "--objective": option(
        "what to optimise: latency (default) or rate (requests per second); with --cluster: latency, throughput, "
        "energy, sum (of compute seconds) or weights (latency=1,energy=0.5)",
        default="latency",
        metavar="AIM",
    ),
    "--rate": option("request rate of this model, per second", type=positive_float, dest="rate_per_s", metavar="PER_S"),
    "--with-model": option(
        "place another model on the same devices (repeatable)", **_LIST, metavar="OUT,rate=5,max-error=1%"
    ),
    "--max-latency": option(
        "limit, such as 50ms, on the predicted latency (with --cluster) or on that of 19 of 20 requests arriving at "
        "random (with --objective rate)",
        type=duration,
        dest="max_latency_s",
        metavar="TIME",
    ),
    "--max-energy-j": option("limit on energy per request, in joules", type=positive_float, metavar="J"),
    "--min-rate": option(
        "lowest request rate that the plan must sustain, per second",
        type=positive_float,
        dest="min_rate_per_s",
        metavar="PER_S",
    ),
    "--max-steps": option(
        "for a model with --state: longest session that devices must have memory for, in steps (default 1)",
        type=positive,
        default=1,
        metavar="N",
    ),
    "--keep-off": option("never place these blocks on DEVICE (repeatable)", **_LIST, metavar="DEVICE=PATTERN"),
    "--time-limit": option(
        "time limit per solve, in seconds (default 20; with --axes 4); a plan takes up to five solves",
        type=positive_float,
        dest="time_limit_s",
        metavar="S",
    ),
    "--gap": option(
        "stop once the plan is proven this close to the optimum (default 0.5%%)", type=fraction, metavar="SHARE"
    ),
    "--axes": option(
        "plan a front of two aims instead of one plan: latency,error, latency,energy or latency,throughput",
        metavar="A,B",
    ),
    "--runs": option("number of timed runs (default 100; fewer for a slow model)", type=positive),
    "--steps": option("for a model with --state: time N steps of one session instead", type=positive, metavar="N"),
    "--load": option(
        "put deploy/ under load instead (at most 60 s): measure its capacity, then latency at a share of it (80%%) or "
        "at a rate (200/s)",
        type=demand,
        metavar="LOAD",
    ),
    "--stream": option("with --cluster: keep several requests in flight to measure throughput", **_FLAG),
}
