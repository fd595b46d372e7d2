"""The remarks on an outcome: its notes by importance, each with what to do. Words no note itself, and measures nothing.

A note is a line of text that the stage which wrote it words. Its kind is recognised by a phrase of it;
tests/report/test_remarks.py holds every phrase against the function that writes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from taglio.error.loss import RELATIVE_L2
from taglio.flow.confirm import UNPROVEN
from taglio.flow.outcome import Outcome
from taglio.report.answer import float_stays, larger_limit

# The most remarks on the terminal.
MOST = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """Notes that contain `phrase`. `advice` is what to do about them; "" where the note says it itself."""

    phrase: str
    advice: str = ""


# Whether the answers mean anything comes first, then whether the figures hold for other inputs, then whether the times
# hold, then what else could be gained.
KINDS = (
    Kind("the search was stopped before it was done", "run it again for the fastest plan"),
    Kind("is planned instead", "compare other builds with deploy/samples, not with the source model"),
    Kind("output has NaN", "check the data and their preprocessing"),
    Kind("its error is meaningless"),
    Kind("so it takes pixels from 0 to 255"),
    Kind("and the model does not scale"),
    Kind("check the data and their preprocessing"),
    Kind("so a model that knows no other agrees"),
    Kind("if it is the blank, give"),
    Kind("not used as labels: ", "give them with --labels"),
    Kind("answers are random"),
    Kind("not safe on x86 processors without VNNI"),
    Kind("were measured on a processor without VNNI"),
    Kind("as fast as the model as it was given"),
    Kind("too noisy to tell whether the plan is faster"),
    Kind(UNPROVEN, "deploy float32, or allow more if you can"),
    Kind("the speed-up is not confirmed"),
    Kind("no mix of forms can be faster"),
    Kind("no mix of forms is faster"),
    Kind("no form that was raced can be faster"),
    Kind("the blocks that save time change the answers too much", "allow more if you can"),
    Kind("held-out inputs are unlike the calibration inputs"),
    Kind("beyond the limit that the held-out inputs keep"),
    Kind("the limit holds on these inputs; on similar inputs", "give more data, or a smaller limit"),
    Kind("the plan was selected on the same"),
    Kind("no output changes on any of"),
    Kind("few inputs: "),
    Kind("held-out inputs are also calibration inputs", "give others, or calibrate on --calibration"),
    Kind("inputs repeat others", "give more distinct inputs"),
    Kind("studied on "),
    Kind("held-out inputs: each counts for"),
    Kind("at other sizes of these dynamic dimensions", "give data of every size that you serve"),
    Kind("products saturate at 16 bits", "give that scheme with --scheme"),
    Kind("has one scale for all rows of a batch", "serve it with --batch 1, or keep the rows of a batch alike"),
    Kind("the machine was busy"),
    Kind("a faster plan (about", "allow more if you can, or give more data"),
    Kind("not as fast on processors without bfloat16"),
    Kind("all inputs have one shape: with"),
    Kind("changes its length on", "limit a task instead, such as --metric ctc"),
    Kind("in the order of scores"),
    Kind("the labels were not used", "name the task with --metric"),
    Kind("the model is quantised already"),
    Kind("no output is float", "limit a task instead, such as --metric top1"),
    Kind("requests are not joined: "),
    Kind("a higher effort compares them"),
    Kind("not measured: ", "a higher --effort measures more"),
    Kind("float32 runs with "),
    Kind("the plan runs with "),
    Kind("the threads were not chosen: "),
)
# Notes that only describe: there is nothing to do about them.
FACTS = (
    "no block has another form than float32",
    "values fed: ",
    "than during profiling",
    "of the plan's blocks in ",
    "all-int8 is rejected",
    "if new inputs are like these: worst of",
    "no upper end is given for other inputs",
    "outputs that are not float",
    "quantised operators without a known float form stay",
    "which rounds differently from the CPU",
    "was converted to ONNX by",
    "is used for the model's only input",
    "not among the model's inputs",
    "numbered by",
    "next to the data",
    "so it is taken as several",
    "which is used",
    "samples calibrate, and errors are measured on",
)


def ranked(outcome: Outcome) -> tuple[str, ...]:
    """What the user should know and do, the most important first. A note of no kind comes after those of a kind."""
    notes = [note for note in outcome.unsure() if not is_fact(note)]
    remarks = [_with_advice(note) for note in sorted(notes, key=_rank)]
    return (*remarks, *_larger_limit(outcome), *_no_int8(outcome), *_to_install(outcome))


def facts(outcome: Outcome) -> tuple[str, ...]:
    """The notes that only describe, in their own order."""
    return tuple(note for note in outcome.unsure() if is_fact(note))


def is_fact(note: str) -> bool:
    """Whether there is nothing to do about a note."""
    return _kind(note) is None and any(phrase in note for phrase in FACTS)


def shortened(remarks: Sequence[str], page: str) -> tuple[str, ...]:
    """The first remarks, and where the others are: `page`."""
    more = len(remarks) - MOST
    return tuple(remarks) if more <= 0 else (*remarks[:MOST], f"{more} more in {page}, or with --verbose")


def _kind(note: str) -> Kind | None:
    return next((kind for kind in KINDS if kind.phrase in note), None)


def _rank(note: str) -> int:
    kind = _kind(note)
    return len(KINDS) if kind is None else KINDS.index(kind)


def _with_advice(note: str) -> str:
    kind = _kind(note)
    return note if kind is None or not kind.advice else f"{note}; {kind.advice}"


def _larger_limit(outcome: Outcome) -> list[str]:
    line, max_error = larger_limit(outcome)
    if not line:
        return []
    if outcome.metric.name != RELATIVE_L2:
        return [f"{line}; raise the limit if that is allowed"]
    limit = f"{max_error * 100:.3g}%"
    return [f"{line}; if that is allowed, take it with taglio build OUT --max-error {limit}"]


def _no_int8(outcome: Outcome) -> list[str]:
    if outcome.int8.int8_blocks or not float_stays(outcome):
        return []
    return ["no block computes in int8; taglio inspect MODEL --blocks all says why"]


def _to_install(outcome: Outcome) -> list[str]:
    """The runtimes that were not tried because they are not installed, with the command that installs them."""
    absent: dict[str, list[str]] = {}
    for place in outcome.places:
        if place.latency is None and "pip install" in place.reason:
            absent.setdefault(place.reason, []).append(place.runtime)
    return [f"{', '.join(dict.fromkeys(runtimes))}: {reason}" for reason, runtimes in absent.items()]
