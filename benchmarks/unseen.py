"""Do the errors that are reported hold on fresh data? Ten networks, each with inputs that the run never got.

Each network is optimised with 64 calibration and 96 held-out inputs of its generator (rendered lines and pages of
text, digits, synthetic speech, files of this machine, random tokens). The model that was built then answers 96 fresh
inputs of the same generator, and its pooled error stands beside the reported one and its upper end. Passed: below the
upper end for at least eight of ten, and above 1.1 × the limit for at most one.

    python benchmarks/unseen.py [--cases digits,ch_PP-OCRv4_rec_infer] [--max-error 0.01] [--effort 0.5] [--threads 1]
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import taglio
from cases import CASES, SHARED, markdown, paths, write
from taglio.embedded import digits_data
from taglio.error.tally import Tally
from taglio.errors import TaglioError

CALIBRATION, HELD_OUT, FRESH = 64, 96, 96
ALL = CALIBRATION + HELD_OUT + FRESH
WILD = SHARED / "models" / "wild"
# Files whose kind magika tells, by where they lie.
FILES = (
    "usr/bin/*", "usr/share/doc/*/copyright", "usr/lib/python3*/*.py", "etc/*.conf", "usr/share/zoneinfo/*/*",
    "usr/lib/*/*.so*", "usr/share/perl*/**/*.p[lm]", "usr/include/*.h",
)  # fmt: skip

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Row:
    """A network: the `reported` error with its `upper` end and the worst input, and those on fresh inputs."""

    name: str
    reported: float
    upper: float | None
    worst: float | None
    unseen: float | None
    candidates: int
    fresh: float
    fresh_worst: float
    int8_blocks: int

    @property
    def covered(self) -> bool:
        """Whether the error on fresh inputs is at most the reported upper end."""
        return self.upper is not None and self.fresh <= self.upper

    def beyond(self, limit: float) -> bool:
        """Whether fresh inputs break the limit by more than a tenth."""
        return self.fresh > 1.1 * limit


def made(name: str) -> Any:
    """A function of make_data.py, which lies beside the networks."""
    return runpy.run_path(str(WILD / "make_data.py"))[name]


def lines() -> Inputs:
    """Rendered lines of text, scaled as the recogniser takes them."""
    line = made("line")
    pictures = (line(48, 320, seed)[0] for seed in range(ALL))
    return {"x": np.stack([((picture[..., ::-1] / 255 - 0.5) / 0.5).transpose(2, 0, 1) for picture in pictures])}


def pages(name: str, size: int, rows: int, scale: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    """Rendered pages of text, of which the first `rows` are kept, scaled by `scale`."""
    page = made("page")
    return {name: np.stack([scale(page(size, seed)[:rows]).transpose(2, 0, 1) for seed in range(ALL)])}


def tokens() -> Inputs:
    """Random tokens of sentences of 8 to 32."""
    ids = np.random.default_rng(0).integers(1000, 6000, (ALL, 32))
    mask = (np.arange(32) < np.random.default_rng(1).integers(8, 33, (ALL, 1))).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}


def files() -> Inputs:
    """The first and last kilobyte of files of this machine, of every kind as many."""
    kinds = [sorted(path for path in Path("/").glob(pattern) if path.is_file())[:64] for pattern in FILES]
    mixed = (paths_of[row] for row in range(64) for paths_of in kinds if row < len(paths_of))
    rows = []
    for path in islice(mixed, ALL):
        content = path.read_bytes()
        head, tail = content.lstrip()[:1024], content.rstrip()[-1024:]
        row = np.full(2048, 256, np.int32)
        row[: len(head)], row[2048 - len(tail) :] = np.frombuffer(head, np.uint8), np.frombuffer(tail, np.uint8)
        rows.append(row)
    return {"bytes": np.stack(rows)}


def sound() -> Inputs:
    """Frames of synthetic speech, with random states."""
    audio = made("voice")(512 * ALL + 64, 3)
    frames = np.stack([audio[512 * frame : 512 * frame + 576] for frame in range(ALL)])
    states = np.random.default_rng(2).normal(0, 0.3, (ALL, 2, 1, 128)).astype(np.float32)
    return {"input": frames[:, None], "state": states, "sr": np.full(ALL, 16000, np.int64)}


def digits() -> Inputs:
    """Digits of the quick start."""
    with np.load(digits_data()) as arrays:
        return {"image": arrays["image"]}


def noise(name: str, *shape: int) -> Inputs:
    """Smooth random pictures, or series."""
    rng = np.random.default_rng(5)
    coarse = rng.uniform(0.0, 1.0, (ALL, *(max(1, size // 16) if size > 16 else size for size in shape)))
    for axis, size in enumerate(shape, start=1):
        if size > 16:
            coarse = coarse.repeat(-(-size // coarse.shape[axis]), axis=axis).take(range(size), axis=axis)
    return {name: coarse.astype(np.float32)}


MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
NETWORKS: dict[str, tuple[str, Callable[[], Inputs]]] = {
    "digits": ("", digits),
    "ch_PP-OCRv4_rec_infer": ("models/wild/ch_PP-OCRv4_rec_infer.onnx", lines),
    "ch_PP-OCRv4_det_infer": (
        "models/wild/ch_PP-OCRv4_det_infer.onnx",
        partial(pages, "x", 256, 256, lambda picture: (picture / 255 - MEAN) / STD),
    ),
    "paraphrase-MiniLM-L3-v2-6000": ("models/wild/paraphrase-MiniLM-L3-v2-6000.onnx", tokens),
    "magika-standard_v3_3": ("models/wild/magika-standard_v3_3.onnx", files),
    "silero_vad_op18_ifless": ("models/wild/silero_vad_op18_ifless.onnx", sound),
    "ultraface-rfb-320": (
        "models/ultraface-rfb-320.onnx",
        partial(pages, "input", 320, 240, lambda picture: (picture - 127) / 128),
    ),
    "yunet-n-640": ("models/yunet-n-640.onnx", partial(pages, "input", 640, 640, lambda picture: picture[..., ::-1])),
    # These two have random weights.
    "26_hifigan1d": ("cases/26_hifigan1d.onnx", partial(noise, "x", 64, 256)),
    "35_densenet_bn": ("cases/35_densenet_bn.onnx", partial(noise, "x", 3, 32, 32)),
}


def model_of(name: str) -> Path:
    """The network's file. Raises FileNotFoundError where ../shared lacks it."""
    if name in CASES:
        return paths(CASES[name])[0]
    path = SHARED / NETWORKS[name][0]
    if not path.exists():
        raise FileNotFoundError(f"{name}: {path} is missing: benchmarks need ../shared")
    return path


def measure(name: str, limit: float, effort: float, threads: int) -> Row:
    """Optimise one network, and run what was built on fresh inputs."""
    source, inputs = model_of(name), NETWORKS[name][1]()
    count = min(map(len, inputs.values()))
    if count < ALL:
        raise FileNotFoundError(f"{name}: {count} inputs can be made here, and {ALL} are needed")
    # In random order, so that calibration, held-out and fresh inputs are drawn alike.
    order = np.random.default_rng(11).permutation(count)

    def part(first: int, last: int) -> dict[str, np.ndarray]:
        rows = order[first:last]
        parts = {key: value[rows] for key, value in inputs.items()}
        return {key: value.astype(np.float32) if value.dtype == float else value for key, value in parts.items()}

    first = CALIBRATION + HELD_OUT
    calibration = part(0, CALIBRATION)
    result = taglio.optimize(
        source,
        part(CALIBRATION, first),
        max_error=limit,
        effort=effort,
        calibration=calibration,
        threads=threads,
    )
    table = result.table
    assert table is not None, "optimize returns a table"
    fresh = taglio.Model(source, part(first, ALL), calibration=part(0, 2), threads=threads)
    tally, session = Tally(fresh.parts, table.metric), result.session()
    for sample, wanted in zip(fresh.data.all_held_out.samples, fresh.all_float_answers(), strict=True):
        answers = session.run(sample)
        tally.add(wanted, [answers[output] for output in fresh.outputs])
    by_input, unseen = tally.by_input(), table.unseen
    assert by_input is not None, "relative L2 has a value by input"
    return Row(
        name,
        table.plan.error,
        table.plan.error_upper,
        table.plan.worst_input,
        None if unseen is None else unseen.error,
        0 if unseen is None else unseen.candidates,
        tally.value(),
        float(by_input.max()),
        table.plan.int8_blocks,
    )


def cells(row: Row, limit: float) -> list[str]:
    """A row of the table."""
    figures = (row.reported, row.upper, row.unseen, row.fresh, row.worst, row.fresh_worst)
    texts = ["–" if figure is None else f"{figure:.3%}" for figure in figures]
    verdict = "yes" if row.covered else "no"
    return [row.name, str(row.int8_blocks), str(row.candidates), *texts, verdict, "yes" if row.beyond(limit) else "no"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--max-error", type=float, default=0.01)
    parser.add_argument("--effort", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    limit, rows, skipped = options.max_error, list[Row](), dict[str, str]()
    for name in options.cases.split(","):
        try:
            rows.append(measure(name, limit, options.effort, options.threads))
        except (FileNotFoundError, TaglioError) as error:
            skipped[name] = str(error)
            print(f"skipped {error}", flush=True)
            continue
        print(" | ".join(cells(rows[-1], limit)), flush=True)
    head = ["network", "int8 blocks", "candidates", "reported", "upper end", "unseen", "fresh", "worst", "fresh worst"]
    table = markdown([*head, "below the upper end", "above 1.1 × the limit"], [cells(row, limit) for row in rows])
    covered, beyond = sum(row.covered for row in rows), sum(row.beyond(limit) for row in rows)
    verdict = (
        f"On fresh inputs {covered} of {len(rows)} errors lie below the reported upper end, and {beyond} above 1.1 × "
        f"the limit of {limit:.1%}. {sum(row.reported == 0.0 for row in rows)} plans change nothing."
    )
    left = "".join(f"\n* skipped: {reason}" for reason in skipped.values())
    figures = {"options": vars(options), "rows": rows, "skipped": skipped}
    path = write("unseen", figures, f"{table}\n\n{verdict}{left}")
    print(f"{verdict}\nwrote {path}")
    return int(covered < 0.8 * len(rows) or beyond > 0.1 * len(rows))


if __name__ == "__main__":
    sys.exit(main())
