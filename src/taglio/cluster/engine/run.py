"""Run a plan on its devices, compare every answer with the same components in one process, and report measurements.

Plans nothing; recover.py handles lost devices.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, groupby, islice
from pathlib import Path

import numpy as np

from taglio import artifact
from taglio.cluster.devices import Cluster, Link
from taglio.cluster.engine.connect import connect
from taglio.cluster.engine.deploy import Deployment
from taglio.cluster.engine.pipeline import AnsweredRequest
from taglio.cluster.engine.recover import Recovery
from taglio.cluster.engine.replan import Planned
from taglio.cluster.engine.result import ClusterRun, ComponentTime, CrossingTime, PlanTime
from taglio.cluster.engine.runner import Feed, Runner, Steps
from taglio.cluster.engine.wiring import Message
from taglio.cluster.file import parse
from taglio.cluster.planning.simulate import link_name
from taglio.components.build import read
from taglio.components.prove import TOLERANCE
from taglio.errors import BadArtifact, BadOption, MeasurementFailed
from taglio.flow.placing import CLUSTER, ClusterFile
from taglio.flow.workspace import COMPONENTS, PLAN, reopen
from taglio.lab.work import Work
from taglio.plan.result import Plan, Span
from taglio.profile.wall_time import summarize
from taglio.progress import Progress
from taglio.run.in_process import Executor
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.transaction import held

CLUSTER_RUN = "cluster-run"
# Requests in flight at most, for each device that takes turns: all their tensors are in memory.
MOST_LANES = 32
_PATIENCE_S = 15.0
_WARMUP = 3


def planned(folder: Path, cluster: Cluster) -> tuple[Work, Planned]:
    """The workspace in `folder`, its plan and components. Raises BadArtifact if they do not belong together."""
    work = reopen(folder)
    plan = artifact.load(folder / f"{PLAN}.json", PLAN, Plan, model_sha256=work.model.sha256)
    manifest = read(folder / COMPONENTS, model_sha256=work.model.sha256)
    if manifest.plan_sha256 != plan.fingerprint():
        raise BadArtifact(f"{folder / COMPONENTS}: was built from another plan: run taglio build {folder} again")
    if not plan.usage:
        raise BadArtifact(
            f"{folder / PLAN}.json: is a plan for one machine: run taglio plan {folder} --cluster FILE first"
        )
    if plan.start != cluster.start:
        raise BadArtifact(
            f'{folder / PLAN}.json: starts at "{plan.start}", the cluster file at "{cluster.start}": plan again'
        )
    if not cluster.messages_cost:
        cluster = cluster.with_handling(_planned_for(folder, work).handling)
    return work, Planned(folder / COMPONENTS, plan, cluster)


def lanes_for(plan: Plan) -> int:
    """Requests in flight that keep the busiest device or link busy: latency times rate (Little's law), plus one."""
    if plan.predicted_rate_per_s is None:
        return 2
    needed = math.ceil(plan.predicted_latency_s.value * plan.predicted_rate_per_s.value) + 1
    return min(max(2, needed), MOST_LANES * max(len(use.machines) for use in plan.usage))


def patience_s(plan: Plan) -> float:
    """How long to wait for an answer before its pipeline counts as broken: 20 times as long as predicted, or more."""
    return max(_PATIENCE_S, 20.0 * plan.predicted_latency_s.value)


def run_on_cluster(
    folder: Path,
    cluster: Cluster,
    runs: int,
    *,
    stream: bool = False,
    steps: bool = False,
    progress: Progress | None = None,
) -> ClusterRun:
    """Answer `runs` requests on the devices of `cluster`, one at a time, or with `stream` as many in flight as useful;
    with `steps` they are the steps of one session of a model with states."""
    with held(folder):
        work, ready = planned(folder, cluster)
        if steps and stream:
            raise BadOption("`steps` wait for each other's states and cannot be streamed: omit `stream`")
        with connect(cluster.start) as connection:
            recovery = Recovery(connection, folder, ready, lanes_for if stream else lambda _: 1)
            return answer_requests(recovery, work.telling(progress), runs, stream=stream, steps=steps)


def answer_requests(
    recovery: Recovery, work: Work, runs: int, *, stream: bool = False, steps: bool = False
) -> ClusterRun:
    """`run_on_cluster` by a plan whose devices have been connected to."""
    ready = recovery.running
    feeds = list(islice(cycle(work.steps), runs)) if steps else work.timed
    wanted = {ready.folder: references(ready, feeds, steps=steps)}
    with closing(Runner(recovery, patience_s(ready.plan))) as runner:
        lanes = runner.lanes
        warm_up = feeds[:_WARMUP] if steps else [feeds[0]] * (_WARMUP * lanes)
        for _ in runner.answers(warm_up, Steps("warm-up") if steps else None):
            pass
        first = runner.pipeline.deployment
        # Actors end with their handles.
        run = _RunInProgress(recovery.running, replace(first, actors={}, here=None), feeds, wanted, steps=steps)
        begun = time.monotonic()
        for answer in runner.answers(islice(cycle(feeds), runs), Steps("run") if steps else None):
            run.check(answer)
            if work.progress:
                work.progress("running", len(run.answers), runs)
        took_s = time.monotonic() - begun
    plans, rate = run.plans(), ready.plan.predicted_rate_per_s
    result = ClusterRun(
        requests=runs,
        streamed=stream,
        lanes=lanes,
        latency=summarize([answer.latency_s for answer in run.answers]),
        predicted_s=plans[0].predicted_s,
        ratio=plans[0].ratio,
        plans=plans,
        rate_per_s=runs / took_s,
        predicted_rate_per_s=rate.value if stream and rate is not None else None,
        components=run.components(),
        crossings=run.crossings(),
        sent_bytes=run.deployment.sent_bytes,
        distance=run.distance,
        identical=run.identical,
        resent=sum(answer.attempts > 1 for answer in run.answers),
        interruptions=tuple(runner.interruptions),
        returns=tuple(recovery.returns),
        plan_sha256=ready.plan.fingerprint(),
        notes=_notes(recovery, work, ready, stream=stream),
        steps=steps,
    )
    artifact.save(recovery.folder / f"{CLUSTER_RUN}.json", CLUSTER_RUN, work.model.sha256, result)
    return result


def _notes(recovery: Recovery, work: Work, ready: Planned, *, stream: bool) -> tuple[str, ...]:
    """Reasons why a run's figures may differ from the predictions."""
    cluster, here, notes = ready.cluster, recovery.connection.here.name, list[str]()
    file = _planned_for(recovery.folder, work)
    if here != cluster.start:
        notes.append(f'inputs were sent from "{here}", not from the start device "{cluster.start}"')
    if parse(file.text, file.file).with_handling(file.handling) != cluster:
        notes.append("the cluster file has changed since the plan was made: predictions are for the earlier one")
    if stream and ready.plan.crossings and not cluster.messages_cost:
        notes.append("the predicted rate ignores the CPU cost per message: taglio cluster probe measures it")
    return tuple(notes)


@contextmanager
def runners(folders: Sequence[Path], cluster: Cluster) -> Iterator[list[Runner]]:
    """A runner of the plan in each workspace directory, locked meanwhile: new plans are made from its artifacts.

    Raises BadArtifact for a plan for other devices, and BadDevice for devices that cannot run it.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(held(folder))
        ready = [planned(folder, cluster)[1] for folder in folders]
        connection = stack.enter_context(connect(cluster.start))
        yield [
            stack.enter_context(closing(Runner(Recovery(connection, folder, plan, lanes_for), patience_s(plan.plan))))
            for folder, plan in zip(folders, ready, strict=True)
        ]


def _planned_for(folder: Path, work: Work) -> ClusterFile:
    """The cluster file that the plan in `folder` was made for."""
    return artifact.load(folder / f"{CLUSTER}.json", CLUSTER, ClusterFile, model_sha256=work.model.sha256)


@dataclass(slots=True)
class _RunInProgress:
    """A run in progress, with the plan `planned` at first: answers are kept for their times, in order, without outputs.

    `wanted` are one process's answers to `feeds`, by the folder of the components.
    """

    planned: Planned
    deployment: Deployment
    feeds: Sequence[Feed]
    wanted: dict[Path, list[list[np.ndarray]]]
    answers: list[AnsweredRequest] = field(default_factory=list)
    distance: float = 0.0
    identical: int = 0
    steps: bool = False

    def check(self, answer: AnsweredRequest) -> None:
        """Compare an answer with its plan's answer in one process. Raises MeasurementFailed if they differ. A plan that
        took over may have other precisions, and hence different answers."""
        planned = answer.planned
        assert planned is not None, "the server says which"
        if len(self.answers) != answer.request:
            raise MeasurementFailed(f"request {answer.request} was answered instead of {len(self.answers)}")
        if planned.folder not in self.wanted:
            self.wanted[planned.folder] = references(planned, self.feeds, steps=self.steps)
        wanted = self.wanted[planned.folder][answer.request % len(self.feeds)]
        off = max(map(difference, wanted, answer.outputs), default=0.0)
        if off > TOLERANCE:
            raise MeasurementFailed(
                f"the answer to request {answer.request} differs by {off:.2e} from that of one process (limit "
                f"{TOLERANCE:.0e}): this is a bug in taglio, please report the model"
            )
        self.distance, self.identical = max(self.distance, off), self.identical + (off == 0.0)
        self.answers.append(replace(answer, outputs=[]))

    def plans(self) -> tuple[PlanTime, ...]:
        """Times of each plan that answered, predicted and measured."""
        plan_of, answers_of = dict[str, Plan](), dict[str, list[AnsweredRequest]]()
        for planned, answers in groupby(self.answers, lambda answer: answer.planned):
            assert planned is not None, "`check` has seen it"
            name = planned.plan.fingerprint()
            plan_of[name] = planned.plan
            answers_of.setdefault(name, []).extend(answers)
        times = []
        for name, plan in plan_of.items():
            measured = summarize([answer.latency_s for answer in _sent_once(answers_of[name]) or answers_of[name]])
            devices, predicted_s = tuple(dict.fromkeys(plan.devices().values())), plan.predicted_latency_s.value
            ratio = predicted_s / measured.steady_s
            times.append(PlanTime(name, devices, len(answers_of[name]), predicted_s, measured, ratio))
        return tuple(times)

    def _good(self) -> list[AnsweredRequest]:
        """Answers of the plan that was deployed first, sent once."""
        return _sent_once([answer for answer in self.answers if answer.planned is self.planned])

    def components(self) -> tuple[ComponentTime, ...]:
        """Times of each component, predicted and measured."""
        expected = {piece.component: piece.predicted_s for piece in self.planned.plan.pieces}
        answers, times = self._good(), []
        latencies_s = [answer.latency_s for answer in answers]
        for piece in self.deployment.manifest.pieces if answers else ():
            steps = [step for answer in answers for step in answer.steps if step.component == piece.name]
            measured = summarize([step.end_s - step.start_s for step in steps], latencies_s)
            predicted = expected.get(piece.name, math.nan)
            times.append(ComponentTime(piece.name, piece.device, predicted, measured, predicted / measured.steady_s))
        return tuple(times)

    def crossings(self) -> tuple[CrossingTime, ...]:
        """Times of each message between two processes, predicted and measured."""
        cluster, clocks, times = self.planned.cluster, self.deployment.clocks, []
        hops = [hop for answer in self._good() for hop in answer.hops]
        for index, message in enumerate(self.deployment.wiring.messages):
            ends = message.ends(cluster.start)
            hops_s = [hop.read_s - hop.sent_s for hop in hops if hop.message == index]
            if not hops_s:  # within one process
                continue
            predicted = way_s(self.planned.plan.timeline, message, cluster.link(*ends))
            ours = {message.source_device, message.device} & clocks.keys()
            uncertain = sum(clocks[name].uncertain_s for name in ours)
            times.append(CrossingTime(*ends, message.names, message.bytes, predicted, summarize(hops_s), uncertain))
        return tuple(times)


def _sent_once(answers: Sequence[AnsweredRequest]) -> list[AnsweredRequest]:
    return [answer for answer in answers if answer.attempts == 1]


def references(ready: Planned, feeds: Sequence[Feed], *, steps: bool = False) -> list[list[np.ndarray]]:
    """Answers of the components in one process: each of `feeds` as a first step, or all as `steps` of one session."""
    threads = ready.cluster.device(ready.cluster.start).threads
    manifest = read(ready.folder, model_sha256=ready.plan.model_sha256)
    here, states = Executor(ready.folder, manifest, SessionOptions(threads)), None
    answers = []
    for feed in feeds:
        values, after = here.step(feed, states)
        states = after if steps else None
        answers.append(values)
    return answers


def way_s(timeline: Sequence[Span], message: Message, link: Link | None) -> float:
    """Predicted seconds from the end of the component that writes a message to its arrival, including the wait for the
    link, by the plan's timeline; if that lacks one of its tensors, the link's time for the message alone."""
    if link is None:
        return math.inf
    ended_s = {span.what: span.end_s for span in timeline if not span.transfer}
    there_s = {span.what: span.end_s for span in timeline if span.on == link_name((link.source, link.target))}
    names = (
        f"{port.name} (float32)" if port.dtype == "float32" else f"{port.name.removesuffix('/int8')} (int8)"
        for port in message.ports
    )
    arrived_s = [there_s.get(name, math.nan) for name in names]
    if any(map(math.isnan, arrived_s)):
        return link.seconds(message.bytes)
    return max(arrived_s) - ended_s.get(message.source, 0.0)
