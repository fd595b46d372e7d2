"""Write the ONNX forms in the table, once for all back ends that read ONNX. Runs no back end."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from taglio import artifact, weights
from taglio.compare.table import FASTER, OnnxForm
from taglio.data.dataset import Split
from taglio.errors import CannotQuantize, TaglioError
from taglio.memory import make_room, size_text
from taglio.model.graph import Graph, select
from taglio.model.load import Model
from taglio.profile.layerwise import layer_times, speedups
from taglio.progress import Progress, reported
from taglio.quantize.effective import effective
from taglio.quantize.float16 import most_in_float16
from taglio.quantize.precision import FLOAT32, Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.processor import instructions, sums_saturate

# What the float16 converter takes beside weights of 300 MB, with this process, in sizes of the model.
_CONVERTER = 5.5
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
        return QdqBuilder(self.model, self.graph, {self.ranges.method: self.ranges})


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
    """Write every form below `folder`, except those for which `limit_bytes` are too few."""
    needed = _CONVERTER * weights.size_bytes(source.model.proto)
    too_large = dict[str, str]()
    if limit_bytes is not None and needed > limit_bytes:
        why = f"ONNX Runtime's float16 converter needs an estimated {size_text(needed)}: raise the memory limit"
        too_large = {form.key: why for form in forms if form.method == "float16"}
        forms = tuple(form for form in forms if form.key not in too_large)
    folder.mkdir(parents=True, exist_ok=True)
    builder = source.builder()
    done = Written(refusals=too_large)
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


def int8(scheme: Scheme) -> Precision:
    """The precision of whole blocks in int8."""
    return Precision("int8", scheme, "whole")


def _build(source: OnnxSource, builder: QdqBuilder, form: OnnxForm) -> tuple[onnx.ModelProto, str]:
    model, graph, scheme = source.model, source.graph, form.scheme
    if form.method == "float16":
        names = [block.name for block in graph.blocks]
        proto, _, notes = most_in_float16(model, graph, names, source.ranges.low_high)
        return proto, "; ".join(notes)
    if scheme is None:
        return model.proto, ""
    if form.method == "dynamic":
        uncalibrated = precisions(scheme)[-1]
        names = [block.name for block in graph.blocks if uncalibrated.fits(block)]
        if not names:
            raise CannotQuantize(f"no block has an {uncalibrated.name} form")
        return builder.build(dict.fromkeys(names, uncalibrated)), ""
    names = _faster(source, builder, scheme) if form.blocks == FASTER else [*select(graph, form.blocks)]
    if not names:
        raise CannotQuantize(f"no block matches the rule {form.blocks}")
    precision = int8(scheme)
    return builder.build(effective(graph, dict.fromkeys(names, precision), precision)), ""


def _faster(source: OnnxSource, builder: QdqBuilder, scheme: Scheme) -> list[str]:
    """Blocks whose int8 form, run alone, is faster than their float form."""
    sample = source.data.held_out.samples[0]
    times = layer_times(builder, source.graph, (FLOAT32, int8(scheme)), source.options, sample)
    moving = {block.name for block in source.graph.blocks if block.movement}
    return [name for name, ratio in speedups(times).items() if ratio > 1.0 and name not in moving]
