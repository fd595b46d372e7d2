"""The drift reference: ONNX Runtime's float model in this process, timed between the rounds of every back end."""

from taglio.compare.variants import Source
from taglio.compare.workers.loop import timed
from taglio.runtimes.onnxruntime import open_session


class Reference:
    """A session; calling it runs and times it like a row."""

    def __init__(self, source: Source) -> None:
        self._session = open_session(source.model.proto, source.options, label="the reference")
        self._names = list(source.model.outputs)
        self._feed = dict(source.data.held_out.samples[0])

    def __call__(self) -> list[float]:
        """Seconds of the timed runs."""
        return timed(lambda: self._session.run(self._names, self._feed))
