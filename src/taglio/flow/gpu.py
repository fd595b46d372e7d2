"""How long copies to and from a GPU take, and which operators it leaves to the CPU. Decides nothing."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from taglio.errors import TaglioError, plural
from taglio.flow.work import Work
from taglio.runtimes import cuda
from taglio.runtimes.cuda import CudaSession

# Runs from which the median time of copies is taken, after as many that do not count.
_RUNS = 30
# The types of operators that a note names.
_NAMED = 5


def on_gpus(work: Work, places: Sequence[str]) -> tuple[str, ...]:
    """A note for each of `places` that is on a GPU."""
    asked = [place for place in places if place in cuda.PLACES]
    if not asked:
        return ()
    found = []
    with work.stored() as path:
        for place in asked:
            try:
                session = cuda.open_session(path, work.setup.options(place))
                found.append(f"{place}: {', '.join(_remarks(session, work))}")
            except TaglioError:  # the places say why
                continue
    return tuple(found)


def _remarks(session: CudaSession, work: Work) -> list[str]:
    feed = work.timed[0]
    resident = session.resident(feed)
    whole_s, inside_s = _median_s(lambda: session.run(None, feed)), _median_s(resident)
    remarks = [f"copying between host and GPU takes {max(0.0, whole_s - inside_s) * 1e3:.2f} of {whole_s * 1e3:.2f} ms"]
    if not session.captures:
        remarks.append("kernels are launched one by one, because ONNX Runtime captures no CUDA graph of this model")
    left = session.on_cpu()
    return remarks + ([f"on the CPU: {plural(left.total(), 'operator')} ({_most(left)})"] if left else [])


def _median_s(run: Callable[[], object]) -> float:
    took = []
    for _ in range(2 * _RUNS):
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
    return median(took[_RUNS:])


def _most(counts: Counter[str]) -> str:
    named = [f"{kind} {count}" for kind, count in counts.most_common(_NAMED)]
    return ", ".join(named + ["…"] * (len(counts) > _NAMED))
