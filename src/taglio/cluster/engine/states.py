"""The states that a device's components keep of each session from step to step. Runs nothing.

They are lost with the device: the sender repeats the steps (serve.py), or reports that the session is lost.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from taglio.cluster.engine.parcel import SessionStep
from taglio.components.build import State
from taglio.errors import BadDevice

# Most sessions whose states are kept; the least recently used is dropped first.
SESSIONS = 1000


class States:
    """The states of sessions, by component."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, tuple[int, dict[str, np.ndarray]]]] = {}

    def before(self, component: str, states: Sequence[State], step: SessionStep | None) -> dict[str, np.ndarray]:
        """The states that a step reads, by input; a request without a session is a first step. Raises BadDevice if the
        previous step was not run here."""
        if step is None or step.number == 0 or not states:
            return {each.past: each.first() for each in states}
        done, values = self._kept.get(component, {}).get(step.session, (0, {}))
        if done != step.number:
            raise BadDevice(
                f'component {component} was asked for step {step.number} of session "{step.session}" but has run '
                f"{done} of its steps: its state is lost, start the session again"
            )
        return values

    def keep(
        self, component: str, states: Sequence[State], step: SessionStep | None, written: Mapping[str, np.ndarray]
    ) -> None:
        """Keep the states that a step wrote, unless it was the last one."""
        if step is None or not states:
            return
        mine = self._kept.setdefault(component, {})
        mine.pop(step.session, None)
        if not step.last:
            mine[step.session] = step.number + 1, {each.past: written[each.present] for each in states}
        if len(mine) > SESSIONS:
            del mine[next(iter(mine))]
