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
class NoteKind:
    """Notes that contain `phrase`. `advice` is what to do about them; "" where the note says it itself."""

    phrase: str
    advice: str = ""


# Whether the answers mean anything comes first, then whether the figures hold for other inputs, then whether the times
# hold, then what else could be gained.
KINDS = (
    NoteKind("the search was stopped before it was done", "run it again for the fastest plan"),
    NoteKind("is planned instead", "compare other builds with deploy/samples, not with the source model"),
    NoteKind("output has NaN", "check the data and their preprocessing"),
    NoteKind("its error is meaningless"),
    NoteKind("so it takes pixels from 0 to 255"),
    NoteKind("and the model does not scale"),
    NoteKind("check the data and their preprocessing"),
    NoteKind("so a model that knows no other agrees"),
    NoteKind("if it is the blank, give"),
    NoteKind("not used as labels: ", "give them with --labels"),
    NoteKind("answers are random"),
    NoteKind("not safe on x86 processors without VNNI"),
    NoteKind("were measured on a processor without VNNI"),
    NoteKind("as fast as the model as it was given"),
    NoteKind("too noisy to tell whether the plan is faster"),
    NoteKind(UNPROVEN, "deploy float32, or allow more if you can"),
    NoteKind("the speed-up is not confirmed"),
    NoteKind("no mix of forms can be faster"),
    NoteKind("no mix of forms is faster"),
    NoteKind("no form that was raced can be faster"),
    NoteKind("the blocks that save time change the answers too much", "allow more if you can"),
    NoteKind("held-out inputs are unlike the calibration inputs"),
    NoteKind("beyond the limit that the held-out inputs keep"),
    NoteKind("the limit holds on these inputs; on similar inputs", "give more data, or a smaller limit"),
    NoteKind("the plan was selected on the same"),
    NoteKind("no output changes on any of"),
    NoteKind("few inputs: "),
    NoteKind("held-out inputs are also calibration inputs", "give others, or calibrate on --calibration"),
    NoteKind("inputs repeat others", "give more distinct inputs"),
    NoteKind("held-out inputs: each counts for"),
    NoteKind("at other sizes of these dynamic dimensions", "give data of every size that you serve"),
    NoteKind("products saturate at 16 bits", "give that scheme with --scheme"),
    NoteKind("has one scale for all rows of a batch", "serve it with --batch 1, or keep the rows of a batch alike"),
    NoteKind("the machine was busy"),
    NoteKind("a faster plan (about", "allow more if you can, or give more data"),
    NoteKind("not as fast on processors without bfloat16"),
    NoteKind("all inputs have one shape: with"),
    NoteKind("changes its length on", "limit a task instead, such as --metric ctc"),
    NoteKind("in the order of scores"),
    NoteKind("the labels were not used", "name the task with --metric"),
    NoteKind("the model is quantised already"),
    NoteKind("no output is float", "limit a task instead, such as --metric top1"),
    NoteKind("requests are not joined: "),
    NoteKind("a higher effort compares them"),
    NoteKind("not measured: ", "a higher --effort measures more"),
    NoteKind("float32 runs with "),
    NoteKind("the plan runs with "),
    NoteKind("the threads were not chosen: "),
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
    "not among the model's required inputs",
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


def _kind(note: str) -> NoteKind | None:
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
