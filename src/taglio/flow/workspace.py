"""The folder that one model's stages share: what is in it, under which names, and how to open it again."""

from dataclasses import dataclass, replace
from pathlib import Path

from taglio import artifact
from taglio.data.dataset import MAX_CALIBRATION, Split, load, parse_preprocess, split
from taglio.error.loss import RELATIVE_L2, parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.switchable import Switchable
from taglio.errors import BadArtifact, BadOption
from taglio.model.graph import Graph, build
from taglio.model.load import Model
from taglio.model.load import load as load_model
from taglio.profile.stopwatch import Progress
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import Calibration, Scheme
from taglio.quantize.trial import unusable
from taglio.runtimes.onnxruntime import NAME, Optimization, SessionOptions, version

SETUP, RANGES, FLOATS, PROFILE, ERROR, PLAN, RUN = "setup", "ranges", "floats", "profile", "error", "plan", "run"
COMPONENTS = "components"
FLOAT_MODEL = "float32.onnx"
REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that must be the same from stage to stage.

    `calibration` is data to calibrate on where that is no part of `data`; "" takes a part of `data`.
    """

    model: str
    shapes: dict[str, tuple[int, ...]]
    data: str
    preprocess: str
    seed: int
    threads: int
    spinning: bool
    optimization: str
    scheme: Scheme | None = None
    metric: str = RELATIVE_L2
    calibration: str = ""
    runtime: str = NAME

    def options(self) -> SessionOptions:
        """How sessions that are timed are opened."""
        return SessionOptions(self.threads, Optimization(self.optimization), self.spinning, runtime=self.runtime)


@dataclass(frozen=True, slots=True)
class Floats:
    """The blocks that were found unable to be int8 with ONNX Runtime `version`, and why."""

    data_sha256: str
    version: str
    reasons: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """An opened workspace: the model, its blocks and its data, ready for any stage."""

    folder: Path
    setup: Setup
    model: Model
    graph: Graph
    data: Split

    def meter(self, switchable: Switchable, count: int | None = None) -> ErrorMeter:
        """A meter of the set-up's metric on the first `count` held-out inputs (None: all)."""
        held_out = self.data.held_out
        metric = parse_metric(self.setup.metric)
        return ErrorMeter(switchable, held_out.samples[:count], self.model.outputs, metric, held_out.labels)

    def builder(self, scheme: Scheme, progress: Progress | None = None) -> QdqBuilder:
        """A builder of quantised models under `scheme`; its calibration is read from the folder or made and kept."""
        return QdqBuilder(self.model, self.graph, {scheme.calibration: self.ranges(scheme, progress)})

    def settled(self, scheme: Scheme, progress: Progress | None = None) -> "Work":
        """The same work with every block float that was tried in int8 under `scheme` and failed (quantize/trial.py);
        which ones is read from the folder or found out and kept."""
        path = self.folder / f"{FLOATS}-{scheme}.json"
        sha256, known = self.data.calibration.sha256, None
        if path.exists():
            try:
                known = artifact.load(path, FLOATS, Floats, model_sha256=self.model.sha256)
            except BadArtifact:
                known = None
        if known is None or (known.data_sha256, known.version) != (sha256, version()):
            known = Floats(sha256, version(), self.unusable(scheme, progress))
            artifact.save(path, FLOATS, self.model.sha256, known)
        return replace(self, graph=self.graph.without_int8(known.reasons))

    def unusable(self, scheme: Scheme, progress: Progress | None = None, *, thorough: bool = True) -> dict[str, str]:
        """The blocks that cannot be int8 under `scheme`, each with the reason; nothing is kept but the ranges."""
        options = replace(self.setup.options(), spinning=False)
        feed = self.data.calibration.samples[0]
        ranges = self.ranges(scheme, progress)
        return unusable(self.model, self.graph, ranges, scheme, feed, options, thorough=thorough)

    def ranges(self, scheme: Scheme, progress: Progress | None = None) -> Ranges:
        """Calibrated ranges for `scheme`'s method, from the folder where they are of this data."""
        path = self.folder / f"{RANGES}-{scheme.calibration}.json"
        if path.exists():
            try:
                known = artifact.load(path, RANGES, Ranges, model_sha256=self.model.sha256)
            except BadArtifact:
                known = None
            if known is not None and known.data_sha256 == self.data.calibration.sha256:
                return known
        made = self.measure_ranges(scheme.calibration, progress)
        artifact.save(path, RANGES, self.model.sha256, made)
        return made

    def measure_ranges(self, method: Calibration, progress: Progress | None = None) -> Ranges:
        """Calibrate, keeping nothing."""
        tell = (lambda done, total: progress("calibrating", done, total)) if progress else None
        return calibrate(self.model, self.data.calibration, method, tell)


def create(folder: Path, setup: Setup) -> Work:
    """Open a model and its data and remember them in `folder`. The model is read before anything is written."""
    work = open_only(folder, setup)
    keep(work)
    return work


def keep(work: Work) -> None:
    """Remember an opened model and its data in its folder."""
    artifact.write_bytes(work.folder / FLOAT_MODEL, work.model.proto.SerializeToString())
    artifact.save(work.folder / f"{SETUP}.json", SETUP, work.model.sha256, work.setup)


def reopen(folder: Path) -> Work:
    """Open the model and data that `create` remembered. Raises BadArtifact where the model has changed since."""
    setup = artifact.load(folder / f"{SETUP}.json", SETUP, Setup)
    work = _open(folder, setup)
    artifact.load(folder / f"{SETUP}.json", SETUP, Setup, model_sha256=work.model.sha256)
    return work


def open_only(folder: Path, setup: Setup) -> Work:
    """Open a model and its data without writing anything."""
    return _open(folder, setup)


def _open(folder: Path, setup: Setup) -> Work:
    model = load_model(Path(setup.model), setup.shapes)
    preprocess = parse_preprocess(setup.preprocess) if setup.preprocess else None
    dataset = load(Path(setup.data), model.inputs, preprocess)
    data = split(dataset, seed=setup.seed) if not setup.calibration else None
    if data is None:
        if Path(setup.calibration) == Path(setup.data):
            raise BadOption("--calibration is --data: leave it out, and taglio holds a part of the data out")
        calibration = load(Path(setup.calibration), model.inputs, preprocess, MAX_CALIBRATION)
        data = Split(calibration, dataset, setup.seed)
    return Work(folder, setup, model, build(model), data)
