"""ONNX Runtime's CPU and CUDA providers."""

from collections.abc import Sequence
from pathlib import Path

from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Array, Opened, Refused, file_bytes
from taglio.compare.workers.sessions import Sessions
from taglio.runtimes import cuda
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.places import refusal


class OnnxRuntime(Sessions):
    """Sessions on the CPU and, where the row's engine says so, on a GPU."""

    def open(self, wanted: WantedRow) -> Opened:
        """A session on `wanted.file`, on the CPU unless `wanted.engine` is a place on a GPU."""
        if wanted.engine in cuda.PLACES:
            return self._on_gpu(Path(wanted.file), wanted.engine)
        return super().open(wanted)

    def _on_gpu(self, path: Path, place: str) -> Opened:
        """A session in one of the places on a GPU."""
        if reason := refusal(place):
            raise Refused(reason)
        session = cuda.open_session(path, SessionOptions(self._request.threads, runtime=place))
        names = session.inputs

        def run(sample: Sequence[Array]) -> list[Array]:
            return session.run(None, dict(zip(names, sample, strict=True)))

        return Opened(run, file_bytes(path), file=str(path))


make = OnnxRuntime
