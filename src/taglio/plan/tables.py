"""The tables of a model on one machine, which predict any mix of forms. Measures and solves nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.result import Interval, Limits, Plan, Status, placements
from taglio.profile.result import Profile, predict
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision, int8_of


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The seconds in `profile` and the noise in `error` (None: errors were not studied, or are not limited) of the
    blocks of `graph`."""

    graph: Graph
    profile: Profile
    error: ErrorModel | None = None

    def latency(self, assignment: Assignment) -> Interval:
        """Predicted seconds of one inference."""
        return Interval.around(predict(self.profile, self.graph, assignment).total_s, self.profile.interval_ratio)

    def deviation(self, assignment: Assignment) -> Interval:
        """Predicted error; NaN without a study."""
        if self.error is None:
            return Interval(0.0, nan, nan)
        return error_interval(self.error, self.error.predict(self.graph, assignment))

    def describe(
        self,
        limits: Limits,
        assignment: Mapping[str, Precision],
        *,
        status: Status = "measured",
        gap: float = 0.0,
    ) -> Plan:
        """A plan from an assignment, as ONNX Runtime will run it, with predictions and intervals."""
        profile = self.profile
        final = effective(self.graph, assignment, int8_of(profile.precisions))
        return Plan(
            model_sha256=profile.model_sha256,
            scheme=profile.scheme,
            precisions=profile.precisions,
            limits=limits,
            placements=placements(self.graph, final),
            status=status,
            gap=gap,
            predicted_latency_s=self.latency(final),
            predicted_error=self.deviation(final),
            runtime=profile.conditions.runtime,
        )


def error_interval(model: ErrorModel, error: float) -> Interval:
    """A predicted `error` with the upper end that `model` gives it."""
    return Interval(0.0, error, model.upper(error))
