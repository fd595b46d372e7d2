"""Measure one back end's rows, layers and supported operators, except those kept from earlier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taglio.compare import environments, origin, supervise
from taglio.compare.environments import Found
from taglio.compare.kept import Notebook, Part
from taglio.compare.layers import onnxruntime_layers
from taglio.compare.request import Request
from taglio.compare.row import Layer, Row, Support, Wanted
from taglio.compare.supervise import Limits, Reference
from taglio.compare.variants import Source, Written

Tell = Callable[[str, int, int], None]
_REFERENCE = "onnxruntime"  # its float row is the reference model itself and runs in every round already
_NOTHING = "none of its rows could be measured"


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """Settings shared by all back ends. `layers`: whether to measure layers."""

    request: Request
    source: Source
    written: Written
    limits: Limits
    notebook: Notebook
    reference: Reference
    layers: bool
    tell: Tell | None

    def measure(self, backend: str, asked: Sequence[Wanted]) -> None:
        """Measure the rows that are not kept. Impossible rows, and rows of missing back ends, never reach a worker."""
        place = environments.find(backend)
        part = self.notebook.part(backend, place.versions)
        for each in asked:
            if each.refusal:
                part.rows[each.id] = Row(each, "impossible", each.refusal, None, None)
            elif place.interpreter is None:
                part.rows[each.id] = Row(each, place.status, place.reason, None, None)
        left = [each for each in asked if each.id not in part.rows or part.rows[each.id].wanted != each]
        if left:
            left = [each for each in asked if each in left or (each.baseline and not each.refusal)]
        if place.interpreter is None or not (left or self._waits(part)):
            if self._waits(part):
                part.absent = _NOTHING
            self.notebook.save()
            return
        folder = Path(self.request.folder) / backend
        job = replace(self.request, backend=backend, rows=tuple(asked), folder=str(folder))
        part.conversion, reason = origin.converted_for(job, self.limits)
        job = replace(job, converted=part.conversion.path if part.conversion else "")
        if reason:
            part.rows |= {each.id: Row(each, "failed", reason, None, None) for each in left}
        elif left:
            self._rows(place, part, replace(job, rows=tuple(left)))
        if self.layers:
            self._layers(place, part, job)
        self.notebook.save()

    def _waits(self, part: Part) -> bool:
        return self.layers and part.layers is None

    def _rows(self, place: Found, part: Part, job: Request) -> None:
        def keep(row: Row) -> None:
            part.rows[row.wanted.id] = self._annotated(row)
            self.notebook.save()

        assert place.interpreter is not None
        reference = None if job.backend == _REFERENCE else self.reference
        rows, told = supervise.measure_rows(
            place.interpreter, job, self.limits, self.tell, keep=keep, reference=reference
        )
        part.rows |= {row.wanted.id: self._annotated(row) for row in rows}
        part.told = told or part.told

    def _annotated(self, row: Row) -> Row:
        """The row with notes on what its ONNX form left out; ONNX Runtime's baseline is also its reference."""
        if row.wanted.backend == _REFERENCE and row.latency is not None:
            row = replace(row, latency=replace(row.latency, reference_s=row.latency.baseline_s))
        notes, files = self.written.notes, self.written.files
        note = next((text for key, text in notes.items() if files[key] == row.wanted.file), "")
        if not note or row.checked is None or note in row.checked.notes:
            return row
        return replace(row, checked=replace(row.checked, notes=(*row.checked.notes, note)))

    def _layers(self, place: Found, part: Part, job: Request) -> None:
        if not any(row.status == "measured" for row in part.rows.values()):
            part.layers, part.absent = (), _NOTHING
            return
        assert place.interpreter is not None
        if part.layers is None:
            part.layers, part.absent = self._measure_layers(place.interpreter, job)
        if job.backend == "pytorch" and part.support is None:
            found, _ = supervise.collect(place.interpreter, replace(job, task="support"), self.limits, "support")
            part.support = tuple(Support(**each) for each in found)

    def _measure_layers(self, interpreter: Path, job: Request) -> tuple[tuple[Layer, ...], str]:
        if job.backend == "onnxruntime":
            return onnxruntime_layers(self.source, self.tell), ""
        what = f"layers of {job.backend}"
        if self.tell:
            self.tell(what, 0, 1)
        found, reason = supervise.collect(interpreter, replace(job, task="layers"), self.limits, "layer")
        if self.tell:
            self.tell(what, 1, 1)
        return tuple(Layer(**each) for each in found), reason
