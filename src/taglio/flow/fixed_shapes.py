"""What fixing the shapes of inputs would bring to the float model, where all data has one shape. Changes nothing."""

from dataclasses import replace
from itertools import chain

from taglio import artifact
from taglio.confirm.race import USUAL, compared
from taglio.confirm.speedup import Speedup
from taglio.data.dataset import one_of_each, shapes_of
from taglio.data.spec import Shape
from taglio.deploy.write import write_opened
from taglio.errors import BadModel, BadOption, MeasurementFailed
from taglio.flow.confirm import Deliveries
from taglio.lab.work import Work
from taglio.model.written import as_written
from taglio.notes import Kind, Note
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.places import refusal

# A smaller gain is not worth a line.
_WORTH = 1.05


def fixed_shapes_note(work: Work, speedup: Speedup | None) -> Note | None:
    """What `--shape` would bring to the float model beside the plan's `speedup` (None: float stays), if anything. Its
    figures come from a few openings, so they are not confirmed."""
    shapes = _only_shapes(work)
    if not shapes:
        return None
    try:
        ratios = _float_ratios(work, shapes)
    except (BadModel, BadOption, MeasurementFailed):  # the note is an offer, which needs no reason to be absent
        return None
    runtime, ratio = max(ratios.items(), key=lambda item: item[1])
    if ratio < _WORTH * (1.0 if speedup is None else speedup.ratio):
        return None
    options = " ".join(f"--shape {name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return Note(
        Kind.FIXED_SHAPES,
        f"all inputs have one shape: with {options}, float32 in {runtime} is about {ratio:.1f} × as fast as the source "
        "model (not confirmed), and int8 may gain more",
    )


def _only_shapes(work: Work) -> dict[str, Shape]:
    """The shapes of the inputs with dynamic dimensions, if all data agree on them."""
    dynamic = [spec.name for spec in work.inputs if spec.dynamic]
    if not dynamic or work.setup.shapes:
        return {}
    parts = (work.data.calibration.samples, work.data.held_out.samples)
    first, *others = chain.from_iterable([shapes_of(part[row]) for row in one_of_each(part)] for part in parts)
    return {} if any(other != first for other in others) else {name: first[name] for name in dynamic}


def _float_ratios(work: Work, shapes: dict[str, Shape]) -> dict[str, float]:
    """By runtime, how many times as fast the float model with fixed `shapes` is as the source model."""
    runtimes = [name for name in (onnxruntime.NAME, openvino.NAME) if not refusal(name)]
    ports = tuple(spec.name for spec in work.inputs), work.outputs
    with Deliveries(work) as deliveries:
        base, path = deliveries.source(work.setup.threads_of_source), deliveries.root / "fixed.onnx"
        artifact.write_model(path, as_written(work.source, shapes, requantize=work.setup.requantize).proto)
        folders = [deliveries.root / name for name in runtimes]
        for name, folder in zip(runtimes, folders, strict=True):
            write_opened(folder, path, *ports, work.setup.options(name))
        results = compared(deliveries.bench, base, folders, replace(USUAL, choosing=1))
    return {name: result.ratio for name, result in zip(runtimes, results, strict=True)}
