"""Correct an error model by plans that were measured. Measures nothing.

A study uses few inputs and few subsets, so the noise of a block may be off by a large factor. Each measured plan says
what the noises of its blocks add up to. So they are scaled until the sums of all measured plans agree with what was
measured, as nearly as they can: the multiplicative algebraic reconstruction of Gordon, Bender and Herman, 1970.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log

import numpy as np

from taglio.error.measure import Evidence
from taglio.error.model import ErrorModel, OutputModel
from taglio.model.graph import Graph

_SMALLEST = 1e-9


def corrected(model: ErrorModel, graph: Graph, evidence: Sequence[Evidence], limit: float) -> ErrorModel:
    """`model` with noises that agree with the measured `evidence`, for plans whose L2 error is near `limit`."""
    outputs = (*model.outputs, *_added(model.outputs, evidence, limit))
    return replace(model, outputs=tuple(_corrected(output, graph, evidence, limit) for output in outputs))


def _added(outputs: Sequence[OutputModel], evidence: Sequence[Evidence], limit: float) -> list[OutputModel]:
    """Models of the parts that a study left out, since others had larger errors, and that a plan brought near `limit`:
    each begins as that of the part whose errors were most like its own. Near is above half of the limit."""
    near = {part for plan in evidence for part, error in plan.l2.items() if error > 0.5 * limit}
    left_out = sorted(near - {output.output for output in outputs})
    if not outputs or not left_out:
        return []

    def unlikeness(part: str, other: str) -> float:
        pairs = [(plan.l2[part], plan.l2[other]) for plan in evidence if part in plan.l2 and other in plan.l2]
        return sum(abs(log(max(one, _SMALLEST) / max(two, _SMALLEST))) for one, two in pairs)

    added = []
    for part in left_out:
        distances = [unlikeness(part, output.output) for output in outputs]
        added.append(replace(outputs[distances.index(min(distances))], output=part))
    return added


def _corrected(output: OutputModel, graph: Graph, evidence: Sequence[Evidence], limit: float) -> OutputModel:
    noise = np.array([term.own for term in output.blocks] + [term.noise for term in output.edges])
    forms = np.array([term.precision for term in output.blocks] + ["int8"] * len(output.edges))
    far = output.noise_limit(4.0 * limit)  # larger errors count as this: beyond it, noises no longer add up
    rows: list[tuple[np.ndarray, float]] = []
    for plan in evidence:
        terms = output.terms(graph, plan.assignment, plan.wired)
        if not len(terms) or output.output not in plan.l2:
            continue
        predicted, measured = noise[terms].sum(), output.noise_limit(max(plan.l2[output.output], _SMALLEST))
        if measured >= far and predicted >= far:
            continue
        measured = min(measured, far)
        elsewhere = np.isin(forms, forms[terms])
        elsewhere[terms] = False
        # The root of the factor by which a plan was off concerns blocks in the same forms elsewhere too.
        noise[elsewhere] *= np.clip((measured / max(predicted, _SMALLEST**2)) ** 0.5, 0.5, 2.0)
        rows.append((terms, measured))
        for _ in range(20):
            for chosen, total in rows:
                noise[chosen] *= total / max(noise[chosen].sum(), _SMALLEST**2)
    return output.with_noise(noise)
