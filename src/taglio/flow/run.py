"""The run stage: built components timed beside the float model, predicted beside measured. Writes nothing."""

from dataclasses import replace

from taglio.deploy.processor_needs import lacks
from taglio.errors import BadOption, plural
from taglio.lab.build import Built
from taglio.lab.work import Work, require_own
from taglio.plan.result import Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile, predict
from taglio.progress import Progress
from taglio.run.in_process import RunReport, StepsReport, time_plan, time_steps
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.processor import instructions

# Runs by default, as many as take _PATIENCE_S, at least _FEWEST.
_RUNS, _PATIENCE_S, _FEWEST = 100, 60.0, 2


def run_model(
    work: Work,
    profile: Profile,
    plan: Plan,
    built: Built,
    *,
    runs: int | None = None,
    runtime: str | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Time `runs` inferences of the built plan beside the float model: predicted beside measured. None: 100, or as many
    as a slow model runs in a minute.

    `runtime` runs both (None: the one that the plan was built for). Components of several devices run one after another
    in this process. Raises BadOption if `built` is of another plan.

    >>> report = taglio.run_model(model, profile, plan, built, runs=10)
    >>> report.plan.runs, report.predicted_s > 0.0
    (10, True)
    """
    require_own(work, profile=profile, plan=plan, built=built)
    runs = work.within(_PATIENCE_S).runs(_RUNS, _FEWEST) if runs is None else runs
    _refuse(plan, built, "runs", runs)
    options, home = _as_profiled(work, profile), profile.conditions.runtime
    floats = next(run for run in profile.runs if run.name == FLOAT_RUN).wall.median_s
    # For a place without a profile only the plan's own time is known, not the machine's speed at that time.
    profiled, predicted_in = (floats, home) if plan.usage or plan.runtime == home else (None, plan.runtime)
    with work.stored() as model:
        result = time_plan(
            built.open(options, runtime),
            model,
            work.timed,
            runs,
            predicted_s=_expected_s(work, profile, plan),
            profiled_s=profiled,
            progress=progress,
        )
    lacking = lacks(plan.assignment().values(), profile.conditions.machine.instructions, instructions())
    note = "; ".join(filter(None, [*lacking, _other_way(work, options)]))
    return replace(result, here=bool(plan.usage), profiled_in=predicted_in, note=note)


def run_steps(
    work: Work,
    profile: Profile,
    plan: Plan,
    built: Built,
    *,
    steps: int = 100,
    runtime: str | None = None,
) -> StepsReport:
    """Time `steps` steps of a session of the built plan beside one of the float model; each step passes its states to
    the next. Raises BadOption for a model without states, or if `built` is of another plan."""
    _refuse(plan, built, "steps", steps)
    options, expected, feeds = _as_profiled(work, profile), _expected_s(work, profile, plan), work.steps
    with work.stored() as model:
        executor = built.open(options, runtime)
        return time_steps(executor, model, feeds, steps, predicted_s=expected, progress=work.progress)


def _as_profiled(work: Work, profile: Profile) -> SessionOptions:
    """The options of one run at a time with the threads of the profile, whose prediction is compared."""
    return replace(work.setup.options(), threads=profile.conditions.threads, at_once=1)


def _other_way(work: Work, options: SessionOptions) -> str:
    """A line where deploy/ is run in another way, or ""."""
    if work.setup.way == options.way:
        return ""
    timed = f"timed with {plural(options.threads, 'thread')}, as it was profiled"
    return f"{timed}; deploy/ is for {work.setup.way}: --load 80% measures that"


def _refuse(plan: Plan, built: Built, name: str, count: int) -> None:
    if built.plan_sha256 != plan.fingerprint():
        raise BadOption("`built` was built from another plan than `plan`: build it again")
    if count < 1:
        raise BadOption(f"`{name}` is {count}: give at least 1")


def _expected_s(work: Work, profile: Profile, plan: Plan) -> float:
    """The predicted time of a plan here; a cluster plan's own prediction is for its devices and links, so it is
    predicted anew."""
    return predict(profile, work.graph, plan.assignment()).total_s if plan.usage else plan.predicted_latency_s.value
