"""Measure the rows and layers of one back end, except those that a stopped run left."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taglio.compare import environments, supervise
from taglio.compare.checkpoint import Checkpoint, Part
from taglio.compare.layers import onnxruntime_layers
from taglio.compare.request import Request
from taglio.compare.result import Conversion
from taglio.compare.row import Layer, Row, Wanted
from taglio.compare.supervise import Limits, Reference
from taglio.compare.table import NO_LAYERS
from taglio.compare.variants import Source, Written
from taglio.progress import Progress

_REFERENCE = "onnxruntime"  # its float row is the reference model itself and runs in every round already
_NOTHING = "no row of this back end could be measured"


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """Settings shared by all back ends. `layers`: whether to measure layers."""

    request: Request
    source: Source
    written: Written
    limits: Limits
    checkpoint: Checkpoint
    reference: Reference
    layers: bool
    progress: Progress | None

    def measure(self, backend: str, rows: Sequence[Wanted]) -> None:
        """Measure the rows that no earlier run left. Impossible rows and those of missing back ends reach no worker."""
        place = environments.find(backend)
        part = self.checkpoint.part(backend, place.versions)
        for row in rows:
            if row.refusal:
                part.rows[row.id] = Row(row, "impossible", row.refusal, None, None)
            elif place.interpreter is None:
                part.rows[row.id] = Row(row, place.status, place.reason, None, None)
        left = [row for row in rows if row.id not in part.rows or part.rows[row.id].wanted != row]
        if left:
            left = [row for row in rows if row in left or (row.baseline and not row.refusal)]
        layers = self.layers and part.layers is None
        if place.interpreter is not None and (left or layers):
            folder = Path(self.request.folder) / backend
            job = replace(self.request, backend=backend, rows=tuple(rows), folder=str(folder))
            part.conversion, reason = self._converted(job)
            job = replace(job, converted=part.conversion.path if part.conversion else "")
            if reason:
                part.rows |= {row.id: Row(row, "failed", reason, None, None) for row in left}
            elif left:
                self._rows(place.interpreter, part, replace(job, rows=tuple(left)))
            if layers:
                self._layers(place.interpreter, part, job)
        elif layers:
            part.absent = _NOTHING
        self.checkpoint.save()

    def _converted(self, job: Request) -> tuple[Conversion | None, str]:
        """The conversion of the ONNX form that the job's back end needs, if any, or why it failed."""
        if job.backend != "litert" or job.kind in ("keras", "tflite"):
            return None, ""
        place = environments.find("onnx2tf")
        if place.interpreter is None:
            return None, f"an ONNX model needs onnx2tf to become TensorFlow's: {place.reason}"
        job = replace(job, task="convert", backend="onnx2tf", rows=(), folder=f"{job.folder}/onnx2tf")
        answer, reason = supervise.convert(place.interpreter, job, self.limits)
        if not answer:
            return None, f"onnx2tf could not convert the model: {reason}"
        return Conversion("onnx", "SavedModel", answer["tool"], None, answer["path"]), ""

    def _rows(self, interpreter: Path, part: Part, job: Request) -> None:
        def keep(row: Row) -> None:
            part.rows[row.wanted.id] = self._annotated(row)
            self.checkpoint.save()

        reference = None if job.backend == _REFERENCE else self.reference
        rows, reported = supervise.measure_rows(
            interpreter, job, self.limits, self.progress, keep=keep, reference=reference
        )
        part.rows |= {row.wanted.id: self._annotated(row) for row in rows}
        part.reported = reported or part.reported

    def _annotated(self, row: Row) -> Row:
        """The row with notes on what its ONNX form left out; ONNX Runtime's baseline is also its reference."""
        if row.wanted.backend == _REFERENCE and row.latency is not None:
            row = replace(row, latency=replace(row.latency, reference_s=row.latency.baseline_s))
        files = self.written.files
        notes = [note for key, note in self.written.notes.items() if files[key] == row.wanted.file]
        if row.checked is None:
            return row
        return replace(row, checked=replace(row.checked, notes=(*row.checked.notes, *notes)))

    def _layers(self, interpreter: Path, part: Part, job: Request) -> None:
        if not any(row.status == "measured" for row in part.rows.values()):
            part.layers, part.absent = (), _NOTHING
            return
        if job.backend in NO_LAYERS:
            part.layers, part.absent = (), NO_LAYERS[job.backend]
            return
        if job.backend == "onnxruntime":
            part.layers = onnxruntime_layers(self.source, self.progress)
            return
        progress, what = self.progress or (lambda *_: None), f"layers of {job.backend}"
        progress(what, 0, 1)
        measured, part.absent = supervise.collect(interpreter, replace(job, task="layers"), self.limits, "layer")
        part.layers = tuple(Layer(**fields) for fields in measured)
        progress(what, 1, 1)
