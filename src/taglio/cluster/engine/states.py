"""The states that a device's components keep of each session from step to step. Runs nothing.

They are lost with the device: the sender repeats the steps (serve.py), or reports that the session is lost.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from taglio.components.build import State
from taglio.errors import BadDevice

# Most sessions that a component keeps; the least recently used is dropped first.
_SESSIONS = 64


class States:
    """The states of sessions, by component."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[int, dict[str, np.ndarray]]] = {}

    def before(self, component: str, states: Sequence[State], session: tuple[str, int] | None) -> dict[str, np.ndarray]:
        """The states that a step reads, by input; a request without a session is a first step. Raises BadDevice if the
        previous step was not run here."""
        if not states:
            return {}
        name, number = session or ("", 0)
        if number == 0:
            return {each.past: each.first() for each in states}
        done, values = self._kept.get((component, name), (0, {}))
        if done != number:
            raise BadDevice(
                f'component {component} was asked for step {number} of session "{name}" but has run {done} of its '
                "steps: its state is lost, start the session again"
            )
        return values

    def keep(
        self,
        component: str,
        states: Sequence[State],
        session: tuple[str, int] | None,
        written: Mapping[str, np.ndarray],
    ) -> None:
        """Keep the states that a step wrote."""
        if not states or session is None:
            return
        name, number = session
        self._kept.pop((component, name), None)
        self._kept[component, name] = number + 1, {each.past: written[each.present] for each in states}
        mine = [key for key in self._kept if key[0] == component]
        if len(mine) > _SESSIONS:
            del self._kept[mine[0]]
