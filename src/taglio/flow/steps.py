"""Data of a model with state: samples are steps of one sequence, and each step's states come from running the model on
the steps before. Reads no data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from taglio.data.dataset import Dataset, Sample, Samples, assemble, evenly
from taglio.data.spec import Array, InputSpec
from taglio.model.inputs import fix_shapes
from taglio.model.read import IN_MEMORY, read
from taglio.model.state import Pair, first_states, pairs
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

# Read every step: they are one sequence.
ALL_STEPS = 2**31


class Stepped:
    """A model whose `texts` (OUTPUT=INPUT) name its states. `steps` are the samples as given, in order; `first` are the
    states before the first, by input."""

    def __init__(
        self, source: Path | onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], texts: Sequence[str]
    ) -> None:
        self._source, self._shapes, self._texts = source, shapes, texts
        self.pairs: tuple[Pair, ...] = ()
        self.steps: Sequence[Sample] = ()
        self.first: Sample = {}

    def given(self, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
        """The inputs that the data must hold: those that are not states. Raises BadOption for a pair that does not
        fit."""
        self.pairs = pairs(inputs, self._proto()[1].graph.output, self._texts)
        pasts = {past for _, past in self.pairs}
        return tuple(spec for spec in inputs if spec.name not in pasts)

    def filled(self, dataset: Dataset, inputs: Sequence[InputSpec], limit: int, room_bytes: float | None) -> Dataset:
        """`dataset` with the states added to each step, for at most `limit` steps. Raises BadData for steps that the
        model cannot run one after another."""
        path, proto = self._proto()
        session = open_session(proto, SessionOptions(1), label=path.name)
        presents = [present for present, _ in self.pairs]

        def after(feed: Sample, row: int) -> dict[str, Array]:
            values = run_session(session, presents, feed, f"{dataset.source}, step {row}")
            return {past: np.array(value) for (_, past), value in zip(self.pairs, values, strict=True)}

        self.steps = self.steps or dataset.samples
        self.first = self.first or first_states(
            self.pairs, inputs, lambda states: after({**dataset.samples[0], **states}, 0)
        )
        states = self.first
        rows = set(kept := evenly(len(dataset.samples), limit))
        samples = Samples([spec.name for spec in inputs], room_bytes)
        for row, step in enumerate(dataset.samples):
            feed = {**step, **states}
            if row in rows:
                samples.append(feed)
            states = after(feed, row)
        labels = None if dataset.labels is None else dataset.labels[kept]
        names = [dataset.names[row] for row in kept]
        dropped = dataset.dropped + dataset.batch * (len(dataset.samples) - len(kept))
        filled = assemble(dataset.source, samples, names, labels, dropped, dataset.notes)
        return replace(filled, batch=dataset.batch)

    def _proto(self) -> tuple[Path, onnx.ModelProto]:
        path = self._source if isinstance(self._source, Path) else IN_MEMORY
        proto, _ = read(self._source)
        fix_shapes(path, proto, self._shapes)
        return path, proto
