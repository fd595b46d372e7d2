"""Run sessions in interleaved rounds, and take the wall seconds of each inference. Opens no session."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from statistics import fmean, median

import numpy as np

from taglio.errors import MeasurementFailed
from taglio.model.inputs import Feed
from taglio.profile.busy import BusyWatch, enough
from taglio.profile.effort import Schedule
from taglio.runtimes.session import Session, why_failed


def turns(feeds: Sequence[Feed]) -> Sequence[Sequence[Feed]]:
    """The feeds of successive runs: another one in each, or, if their shapes differ, all of them in each."""
    shapes = {tuple((name, np.shape(value)) for name, value in feed.items()) for feed in feeds}
    return [feeds] if len(shapes) > 1 else [[feed] for feed in feeds]


def run_once(name: str, session: Session, feeds: Sequence[Feed]) -> float:
    """Mean wall seconds of an inference on each of `feeds`. Raises MeasurementFailed, naming `name`, if one fails."""
    start = time.perf_counter()
    try:
        for feed in feeds:
            session.run(None, feed)
    except Exception as error:
        raise MeasurementFailed(f"{name}: failed while being timed: {why_failed(error)}") from None
    return (time.perf_counter() - start) / len(feeds)


def run_for(least_s: float, name: str, session: Session, feeds: Iterator[Sequence[Feed]]) -> list[float]:
    """`run_once` again and again until `least_s` seconds have passed, but at least once."""
    seconds, left_s = list[float](), least_s
    while not seconds or left_s > 0.0:
        turn = next(feeds)
        seconds.append(run_once(name, session, turn))
        left_s -= len(turn) * seconds[-1]
    return seconds


def interleave(
    sessions: Mapping[str, Session],
    feeds: Sequence[Sequence[Feed]],
    schedule: Schedule,
    watch: BusyWatch,
    after_round: Callable[[int], object],
) -> dict[str, list[float]]:
    """Wall seconds of every sample, by session, in rounds that run all sessions in a new order.

    Rounds are added if `watch` says that other programs disturbed some. `after_round` is called with the number of
    rounds so far.
    """
    samples: dict[str, list[float]] = {name: [] for name in sessions}
    order, shuffle, feed_cycle = [*sessions], random.Random(0), cycle(feeds)
    done = 0
    while done < schedule.rounds or not enough(watch.windows, schedule.rounds):
        shuffle.shuffle(order)
        for name in order:
            for _ in range(schedule.uncounted[name]):
                run_once(name, sessions[name], next(feed_cycle))
            samples[name].append(_sample(name, sessions[name], feed_cycle, schedule))
        done += 1
        watch.look(done, last=done >= schedule.rounds)
        after_round(min(done, schedule.rounds))
    return samples


def _sample(name: str, session: Session, feeds: Iterator[Sequence[Feed]], schedule: Schedule) -> float:
    """The seconds of a run, from the counted runs of a turn."""
    if schedule.sample_s > 0.0:
        return fmean(run_for(schedule.sample_s, name, session, feeds))
    return median(run_once(name, session, next(feeds)) for _ in range(schedule.counted[name]))
