"""A plan that replaces another measures no error: what the other one measured counts."""

from dataclasses import replace
from pathlib import Path

from taglio import artifact
from taglio.cluster.engine.replan import replan
from taglio.cluster.file import parse
from taglio.cluster.planning.describe import predicted_error
from taglio.flow.place import place
from taglio.flow.placing import reopened
from taglio.flow.workspace import PROFILE, keep_plan
from taglio.profile.result import Profile
from tests.conftest import TWO_DEVICES
from tests.search.made_up import paying

CLUSTER = parse(TWO_DEVICES)
LIMIT = 0.02


def test_errors_that_were_predicted_too_low_are_predicted_higher(digits_workspace: Path, tmp_path: Path) -> None:
    folder = digits_workspace
    # As measured, int8 may gain so little that a plan leaves most of the limit: without VNNI, or beside other programs.
    measured = artifact.load(folder / f"{PROFILE}.json", PROFILE, Profile)
    artifact.save(folder / f"{PROFILE}.json", PROFILE, measured.model_sha256, paying(measured))
    each = reopened(folder, CLUSTER, max_error=LIMIT)
    plan = place(each, CLUSTER, time_limit_s=1.0).plans[0]
    studied = predicted_error(each.error, each.work.graph, plan)

    def highest(factor: float) -> float:
        """The upper end of what a new plan's error can be, if the workspace's plan measured `factor` times as much as
        the study predicts and this one does."""
        keep_plan(folder, replace(plan, measured_error=factor * studied))
        other = replan(folder, plan, CLUSTER, tmp_path / "plans").plan
        return each.error.upper(factor * each.error.predict(each.work.graph, other.assignment()))

    assert 0.0 < highest(0.5) <= 0.5 * LIMIT
    assert 0.5 * LIMIT < highest(1.0) <= LIMIT
    assert highest(2.0) <= LIMIT
