"""Labellings within the limits, close to the Lagrangian's bound: fix part of the network, price the rest again.

The Lagrangian's answers near the best prices each break some limit, and only their weighted mean keeps them all. So the
answers share the network by position: chunk after chunk takes the answer that keeps what was used so far nearest to the
mean. Where two answers meet, nodes stay open. What is left is priced again with what is left of the limits, and so on
until nothing is: an error of the first round is made good in the next. Proves nothing.
"""

from collections.abc import Sequence

import numpy as np

from taglio.plan.elimination import TooWide
from taglio.plan.ledger import Ledger
from taglio.plan.multipliers import Answer, maximise
from taglio.plan.prices import Account, Market
from taglio.plan.relaxation import Relaxation

_SEAM = 4


def dive(
    market: Market,
    ledger: Ledger,
    offered: np.ndarray,
    pool: Sequence[Account],
    shares: np.ndarray,
    multipliers: np.ndarray,
    *,
    scale: float,
    share: float,
    chunks: int,
    arity: int,
    backwards: bool,
) -> tuple[list[Account], np.ndarray]:
    """Answers of ever smaller remainders, and the last prices. Each round fixes `share` of what is open."""
    alive = offered.copy()
    found: list[Account] = []
    nodes = np.arange(market.nodes)
    if backwards:
        nodes = nodes[::-1]
    done = 0
    while done < market.nodes:
        count = max(6, int((market.nodes - done) * share))
        _share_out(alive, nodes[done : done + count], pool, shares, multipliers, ledger, chunks)
        done += count
        try:
            relaxation = Relaxation(market, alive, arity=arity)
        except TooWide:
            break
        answers: list[Account] = []

        def oracle(point: np.ndarray, relaxation: Relaxation = relaxation, answers: list[Account] = answers) -> Answer:
            priced = market.price(point)
            value, labels = relaxation.run(priced)
            account = market.account(priced, labels)
            answers.append(account)
            return Answer(value, value - float(point @ (account.rows - market.uppers)), account.rows - market.uppers)

        answer = maximise(oracle, multipliers, tolerance=1e-4, calls=10, reach=0.02)
        multipliers, shares = answer.multipliers, answer.shares
        found += answers
        pool = answers
        if answer.bound > 1.2 * scale or not len(relaxation.free):
            break
    return found, multipliers


def _share_out(
    alive: np.ndarray,
    nodes: np.ndarray,
    pool: Sequence[Account],
    shares: np.ndarray,
    multipliers: np.ndarray,
    ledger: Ledger,
    chunks: int,
) -> None:
    """Fix these nodes, in `chunks` runs, each as in one of the answers."""
    used = [index for index in np.argsort(-shares) if shares[index] > 1e-6][: len(multipliers) + 1]
    weights = shares[used] / shares[used].sum()
    answers = [pool[index].labels for index in used]
    worth = multipliers + 1e-3 * multipliers.max(initial=0.0)
    ahead = np.zeros(ledger.width - 1)
    last = -1
    pieces = [piece for piece in np.array_split(nodes, chunks) if len(piece)]
    for number, piece in enumerate(pieces):
        by_answer = np.array([ledger.unary[piece, labels[piece], 1:].sum(axis=0) for labels in answers])
        off = ahead + by_answer - weights @ by_answer
        chosen = int((np.maximum(off, 0.4 * -off) @ worth).argmin())
        ahead = off[chosen]
        alive[piece] = False
        alive[piece, answers[chosen][piece]] = True
        if last not in (-1, chosen):
            seam = np.concatenate([pieces[number - 1][-_SEAM:], piece[:_SEAM]])
            alive[seam] = False
            for labels in answers:
                alive[seam, labels[seam]] = True
        last = chosen
