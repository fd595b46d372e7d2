"""A way of running a model, as a value. Measures nothing."""

from dataclasses import dataclass

from taglio.errors import plural


@dataclass(frozen=True, slots=True, order=True)
class Way:
    """How a model is run: `threads` of a run, runs `at_once`, items `joined` in a run at most, and whether threads of
    ONNX Runtime that wait for others busy-wait until the run ends (`spinning`). With `shared`, all runs share one pool
    of `threads` threads, as in a session of ONNX Runtime that several callers use."""

    threads: int
    at_once: int = 1
    joined: int = 1
    spinning: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        if min(self.threads, self.at_once, self.joined) < 1:
            raise ValueError(f"a way needs at least one of each, but is {self}")

    @property
    def used_threads(self) -> int:
        """Threads of all runs together."""
        return self.threads if self.shared else self.threads * self.at_once

    def __str__(self) -> str:
        """Such as `2 runs at once, 1 thread each, up to 4 items joined`."""
        threads = plural(self.threads, "thread")
        if self.at_once == 1:
            text = f"1 run at a time, {threads}"
        else:
            text = f"{self.at_once} runs at once, {threads} {'for all' if self.shared else 'each'}"
        joined = f", up to {self.joined} items joined" if self.joined > 1 else ""
        return text + joined + (", spinning" if self.spinning else "")
