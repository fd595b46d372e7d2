"""Choose what to plan instead of a source that breaks the error limit as ONNX Runtime computes it. Plans nothing.

The reference stays the source as it is written, and speed-ups stay relative to the source with ONNX Runtime's default
options. In this order:

1. `exact-sums`: the source with weights whose products do not saturate (model/exact.py), if saturation breaks the
   limit. ONNX Runtime computes the same under `session.x64quantprecision`; the file needs no such setting.
2. `requantized`: the source with its quantise/dequantise pairs folded to float, as with --requantize. Its int8 blocks
   have weights of 7 bits where sums of 8-bit ones saturate.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx

from taglio.data.dataset import Sample, covering
from taglio.error.loss import Metric
from taglio.errors import Infeasible
from taglio.lab.kept import Kept
from taglio.lab.work import Work
from taglio.model.graph import build
from taglio.model.load import load
from taglio.model.observe import observe
from taglio.model.quantized import quantized_operators
from taglio.notes import Kind, Note
from taglio.runtimes.onnxruntime import NAME, open_session, run_session

EXACT_SUMS, REQUANTIZED = "exact-sums", "requantized"
_WHAT = {
    EXACT_SUMS: "the model with u8 weights, whose sums are exact",
    REQUANTIZED: "the model with its quantise/dequantise pairs folded to float",
}
# Inputs on which the model to plan must answer as the source does.
_COMPARED = 4


def with_instead(work: Work, instead: str) -> Work:
    """A copy of `work` that plans another model. The reference, with which errors are measured, stays the same."""
    held_out = work.data.held_out

    def samples(_: object) -> Sequence[Sample]:
        return covering(held_out.samples)[:_COMPARED]

    requantize = work.setup.requantize or instead == REQUANTIZED
    network = load(work.source, work.setup.shapes, samples, requantize=requantize, exact_sums=instead == EXACT_SUMS)
    graph = build(network, observe(network, work.typical[0], held_out.source), work.graph.states)
    setup = replace(work.setup, instead=instead)
    return work.but(setup=setup, model=network, graph=graph, kept=Kept(), replaced=work.model)


def planned_instead(work: Work, max_loss: float, metric: Metric) -> tuple[Work, Note]:
    """The work for the first model that keeps the limit where the source of `work` does not, and a note. Raises
    Infeasible, with the errors of all that were tried, if none does."""
    reference = work.reference(work.within(4.0).runs(32, 2))
    options, names, source = work.setup.options(NAME), work.outputs, work.data.held_out.source

    def loss(proto: onnx.ModelProto) -> float:
        session = open_session(proto, options, label=work.name)
        return reference.loss(metric.basis, lambda feed: run_session(session, names, feed, source))

    def text(error: float) -> str:
        return f"{metric.title} {metric.text(error, 2)}"

    remark, limit = work.agreement.remark, metric.limit(max_loss, 2)
    ways = [EXACT_SUMS] if work.agreement.saturates else []
    ways += [REQUANTIZED] if quantized_operators(work.model.proto) and not work.setup.requantize else []
    tried = []
    for way in ways:
        other = with_instead(work, way)
        error = loss(other.model.proto)
        if error <= max_loss:
            line = f"{remark}; that breaks the limit ({limit}), so {_WHAT[way]} is planned instead: {text(error)}"
            return other, Note(Kind.PLANNED_INSTEAD, line)
        tried.append(f"{_WHAT[way]} has {text(error)}")
    others = f"; {', '.join(tried)}" if tried else ""
    source_error = text(loss(work.model.proto))
    raise Infeasible(
        f"{work.name} itself has {source_error} as ONNX Runtime computes it (allowed: {limit}){others}: "
        f"allow that much with `{metric.argument}`. {remark}",
        ["max_error"],
    )
