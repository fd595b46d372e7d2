"""The settings that must be the same from stage to stage. Opens nothing."""

from dataclasses import asdict, dataclass, replace

from taglio.artifact import require
from taglio.error.loss import RELATIVE_L2
from taglio.profile.machine import MOST_THREADS
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME, Optimization, SessionOptions
from taglio.runtimes.places import AUTO
from taglio.runtimes.session import RUNTIMES
from taglio.runtimes.way import Way

# The scope of a limit.
POOL, WORST_INPUT = LIMIT_ON = ("pool", "worst-input")


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that must be the same from stage to stage.

    `model` and `data` are paths, "" if given in memory. `calibration` is separate calibration data; "" takes a part of
    `data`. `requantize` first converts quantised parts of the model to float. `memory_bytes` is the memory that a
    stage's process may use; None: half of what is free when it starts. `labels` is a file of labels, if `data` holds
    none. `state` holds pairs OUTPUT=INPUT. `run_s` is the time of a run when the model was first opened: every stage
    does less with a slow model. `instead` names the model that is planned instead of a source that breaks the error
    limit as ONNX Runtime computes it (search/instead.py), or "". `portable` allows only forms that every processor
    computes alike: no sums that may saturate, no bfloat16. `limit_on` is the scope of the limits: the error of all
    inputs together, or of every single one. `threads`, `at_once`, `joined`, `spinning` and `shared` are the way in
    which the result is delivered. `source_threads` are the threads with which the source model is raced; 0: `threads`.
    """

    model: str
    shapes: dict[str, tuple[int, ...]]
    data: str
    preprocess: str
    seed: int
    threads: int
    optimization: str
    scheme: Scheme | None = None
    metric: str = RELATIVE_L2
    calibration: str = ""
    runtime: str = NAME
    requantize: bool = False
    memory_bytes: int | None = None
    labels: str = ""
    state: tuple[str, ...] = ()
    run_s: float = 0.0
    instead: str = ""
    portable: bool = False
    limit_on: str = POOL
    at_once: int = 1
    joined: int = 1
    source_threads: int = 0
    spinning: bool = True
    shared: bool = False

    def check(self) -> None:
        """Raise ValueError for settings that no stage accepts."""
        levels = [level.value for level in Optimization]
        require(self.optimization in levels, f"unknown `optimization` {self.optimization}: use {' or '.join(levels)}")
        on = " or ".join(LIMIT_ON)
        require(self.limit_on in LIMIT_ON, f"unknown `limit_on` {self.limit_on}: use {on}")
        known = (AUTO, *RUNTIMES)
        require(self.runtime in known, f"unknown `runtime` {self.runtime}: use {' or '.join(known)}")
        require(1 <= self.threads <= MOST_THREADS, f"`threads` must be from 1 to {MOST_THREADS}, but is {self.threads}")
        require(min(self.at_once, self.joined) >= 1, "`at_once` and `joined` must be at least 1")
        require(0 <= self.seed < 2**63, f"`seed` must be at least 0 and below 2**63, but is {self.seed}")
        require(self.instead in ("", "exact-sums", "requantized"), f"unknown `instead` {self.instead}")
        require(self.memory_bytes is None or self.memory_bytes > 0, "`memory_limit` must be above 0")
        require(
            all(min(shape, default=1) >= 0 for shape in self.shapes.values()), "`shapes`: sizes must not be negative"
        )

    @property
    def threads_of_source(self) -> int:
        """The threads with which the source model is raced."""
        return self.source_threads or self.threads

    @property
    def way(self) -> Way:
        """The way in which the result is delivered."""
        alone = self.options(NAME).way
        return replace(alone, at_once=self.at_once, joined=self.joined, shared=self.shared)

    def in_way(self, way: Way) -> "Setup":
        """The same for a result that is delivered in `way`."""
        return replace(self, **asdict(way))

    def options(self, place: str = "") -> SessionOptions:
        """Options of timed sessions in `place`; by default in the set-up's own runtime, which is ONNX Runtime until one
        is chosen."""
        place = place or (NAME if self.runtime == AUTO else self.runtime)
        return SessionOptions(self.threads, Optimization(self.optimization), self.spinning, runtime=place)
