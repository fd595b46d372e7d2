"""Write the ONNX forms in the table, once for all back ends that read ONNX. Runs no back end."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from taglio import artifact
from taglio.compare.float16 import most_in_float16
from taglio.compare.table import OnnxForm
from taglio.data.dataset import Split
from taglio.errors import CannotQuantize, TaglioError
from taglio.memory import make_room
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.progress import Progress, reported
from taglio.quantize.effective import effective
from taglio.quantize.precision import Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.processor import instructions, sums_saturate

_SATURATES = (
    "this processor has no VNNI: sums of u8×s8 products may saturate at 16 bits; rows that end in -rr have 7-bit "
    "weights, whose sums fit"
)


@dataclass(frozen=True, slots=True, eq=False)
class OnnxSource:
    """The model in ONNX with its data, its calibrated ranges and its session options."""

    model: Model
    graph: Graph
    data: Split
    ranges: Ranges
    options: SessionOptions

    def builder(self) -> QdqBuilder:
        """Builds any int8 form of the model."""
        return QdqBuilder(self.model, self.graph, self.ranges)


@dataclass(slots=True)
class Written:
    """Files, or reasons for their absence, by the form's key. `notes` say what a form left out."""

    files: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def write(
    source: OnnxSource,
    forms: tuple[OnnxForm, ...],
    folder: Path,
    progress: Progress | None = None,
    *,
    limit_bytes: float | None = None,
) -> Written:
    """Write every form below `folder`, and return freed memory near `limit_bytes` (None: no limit)."""
    folder.mkdir(parents=True, exist_ok=True)
    builder = source.builder()
    done = Written()
    for form in reported(forms, "writing models", progress):
        make_room(limit_bytes)
        try:
            proto, note = _build(source, builder, form)
        except TaglioError as refusal:
            done.refusals[form.key] = str(refusal)
            continue
        path = folder / f"{form.key}.onnx"
        artifact.write_model(path, proto)
        done.files[form.key] = str(path.resolve())
        saturating = form.scheme is not None and form.scheme.may_saturate and sums_saturate(instructions())
        if notes := "; ".join(filter(None, (note, _SATURATES if saturating else ""))):
            done.notes[form.key] = notes
    make_room(limit_bytes)
    return done


def _build(source: OnnxSource, builder: QdqBuilder, form: OnnxForm) -> tuple[onnx.ModelProto, str]:
    model, graph, scheme = source.model, source.graph, form.scheme
    if form.method == "float16":
        names = [block.name for block in graph.blocks]
        converted = most_in_float16(model, graph, names, source.ranges.low_high)
        return converted.proto, "; ".join(converted.left)
    if scheme is None:
        return model.proto, ""
    if form.method == "dynamic":
        uncalibrated = precisions(scheme)[-1]
        names = [block.name for block in graph.blocks if uncalibrated.fits(block)]
        if not names:
            raise CannotQuantize(f"no block has an {uncalibrated.name} form")
        return builder.build(dict.fromkeys(names, uncalibrated)), ""
    if not (candidates := [block.name for block in graph.candidates()]):
        raise CannotQuantize("no block has an int8 form")
    precision = Precision("int8", scheme)
    return builder.build(effective(graph, dict.fromkeys(candidates, precision), precision)), ""
