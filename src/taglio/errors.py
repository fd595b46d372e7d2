"""The error tree: everything that taglio refuses, each error one line for the user. Status is data, not an error."""

from collections.abc import Iterable


class TaglioError(Exception):
    """Base of all refusals. The message is one line that names the thing, the numbers and the fix."""

    exit_code = 2


class BadModel(TaglioError):
    """The model cannot be read, checked or run."""


class BadData(TaglioError):
    """The user's inputs do not fit the model or the metric."""


class BadOption(TaglioError):
    """A command-line or function argument is wrong, or contradicts another."""


class BadArtifact(TaglioError):
    """A file written by another stage is damaged, of another version, or of another model."""


class Busy(TaglioError):
    """Another command is using the same workspace directory."""


class CannotQuantize(TaglioError):
    """A block cannot be quantised under the requested scheme."""


class Infeasible(TaglioError):
    """No plan meets the limits; the message gives the best that can be reached. `limits` are the fields of those that
    contradict each other, if they are known."""

    exit_code = 3

    def __init__(self, message: str, limits: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.limits = tuple(limits)


class MeasurementFailed(TaglioError):
    """A runtime failed or gave unusable numbers while it was measured."""


class BadEnvironment(TaglioError):
    """The environment of a back end cannot be built or used."""


class BadDevice(TaglioError):
    """A device of a running cluster is missing, refuses, or differs from the one the plan was made for."""

    exit_code = 4


def one_line(error: object, limit: int = 160) -> str:
    """The text of a foreign error on one line of at most `limit` characters. Of a longer one the beginning, which names
    the operator, and the end, which has the reason, are kept."""
    text = " ".join(str(error).split())
    if len(text) <= limit:
        return text
    head, gap = limit // 3, " ... "
    return text[:head] + gap + text[len(text) - (limit - head - len(gap)) :]


def plural(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def with_kind(error: BaseException, limit: int = 300) -> str:
    """The kind and the text of a foreign error on one line."""
    return f"{type(error).__name__}: {one_line(error, limit)}"
