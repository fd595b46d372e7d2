"""Measure the rows of one back end after another."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from taglio.compare import environments, supervise
from taglio.compare.request import Request
from taglio.compare.result import Conversion
from taglio.compare.row import Row, WantedRow
from taglio.compare.supervise import Reference, WorkerLimits
from taglio.compare.variants import Written
from taglio.progress import Progress

_REFERENCE = "onnxruntime"  # its float row is the reference model itself and runs in every round already


@dataclass(slots=True)
class MeasuredRows:
    """What was measured: rows by id, versions by back end. `stopped`: Ctrl-C ended the comparison early."""

    rows: dict[str, Row] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    conversions: list[Conversion] = field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RowBench:
    """Settings shared by all back ends."""

    request: Request
    written: Written
    limits: WorkerLimits
    reference: Reference
    progress: Progress | None
    measured: MeasuredRows = field(default_factory=MeasuredRows)

    def measure(self, tables: Mapping[str, Sequence[WantedRow]]) -> MeasuredRows:
        """Measure the rows of every back end in `tables`, until the end or Ctrl-C."""
        try:
            for backend, rows in tables.items():
                self._backend(backend, rows)
        except KeyboardInterrupt:
            self.measured.stopped = True
        return self.measured

    def _backend(self, backend: str, rows: Sequence[WantedRow]) -> None:
        """Measure the rows of one back end. Impossible rows and those of missing back ends reach no worker."""
        place, finished = environments.find(backend), self.measured.rows
        for row in rows:
            if row.refusal:
                finished[row.id] = Row(row, "impossible", row.refusal, None, None)
            elif place.interpreter is None:
                finished[row.id] = Row(row, "missing", place.reason, None, None)
        if place.interpreter is None:
            return
        self.measured.versions[backend] = place.versions
        job = replace(self.request, backend=backend, folder=str(Path(self.request.folder) / backend))
        if unfinished := tuple(row for row in rows if row.id not in finished):
            self._rows(place.interpreter, replace(job, rows=unfinished))

    def _rows(self, interpreter: Path, job: Request) -> None:
        finished, reason = self.measured.rows, ""
        if job.backend == "litert" and job.kind not in ("keras", "tflite"):
            job, reason = self._converted(job)
        if reason:
            finished |= {row.id: Row(row, "failed", reason, None, None) for row in job.rows}
            return

        reference = None if job.backend == _REFERENCE else self.reference
        with closing(
            supervise.measure_rows(interpreter, job, self.limits, self.progress, reference=reference)
        ) as ended:
            for row in ended:
                finished[row.wanted.id] = self._annotated(row)

    def _converted(self, job: Request) -> tuple[Request, str]:
        """The job with the model as a SavedModel, or the reason if it could not be converted."""
        place = environments.find("onnx2tf")
        if place.interpreter is None:
            return job, f"an ONNX model needs onnx2tf to become TensorFlow's: {place.reason}"
        conversion = replace(job, task="convert", backend="onnx2tf", rows=(), folder=f"{job.folder}/onnx2tf")
        answer, reason = supervise.answer(place.interpreter, conversion, self.limits)
        if answer is None:
            return job, f"onnx2tf could not convert the model: {reason}"
        self.measured.conversions.append(Conversion("onnx", "SavedModel", answer["tool"], None, answer["path"]))
        return replace(job, converted=answer["path"]), ""

    def _annotated(self, row: Row) -> Row:
        """The row with notes on what its ONNX form left out; ONNX Runtime's baseline is also its reference."""
        if row.wanted.backend == _REFERENCE and row.latency is not None:
            row = replace(row, latency=replace(row.latency, reference_s=row.latency.baseline_s))
        if row.checked is None:
            return row
        files = self.written.files
        notes = [note for key, note in self.written.notes.items() if files[key] == row.wanted.file]
        return replace(row, checked=replace(row.checked, notes=(*row.checked.notes, *notes)))
