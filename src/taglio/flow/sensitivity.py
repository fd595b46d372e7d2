"""Which blocks cause error, which save time, and which to leave out of quantisation and why. Values in, values out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.profile.result import Profile

# A block is left out if its share of the noise is this many times its share of the time saved.
_OUT_OF_PROPORTION = 4.0


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One block in int8. `damage` is the error with the block alone in int8 (None if it was not measured);
    `noise_share` its share of the error model's noise (squared) with all blocks in int8, in the worst output; `saved_s`
    is float minus int8 seconds, without boundaries; `leave_out` the reason to keep it in float, "" to quantise it."""

    block: str
    kind: str
    damage: float | None
    noise_share: float
    float_s: float
    int8_s: float
    leave_out: str

    @property
    def saved_s(self) -> float:
        """Seconds that int8 saves; negative if int8 is slower."""
        return self.float_s - self.int8_s

    @property
    def saved_per_damage_s(self) -> float | None:
        """Seconds saved per unit of the block's error alone."""
        return self.saved_s / self.damage if self.damage else None


def sensitivity(graph: Graph, profile: Profile, error: ErrorModel) -> tuple[Sensitivity, ...]:
    """Every candidate block that computes, most damaging first."""
    times = profile.block_times()
    alone = {each.block: each.error for each in error.alone if each.precision == "int8"}
    shares = _noise_shares(error)
    blocks = [block for block in graph.candidates() if not block.movement]
    saved = {b.name: times.get((b.name, "float32"), 0.0) - times.get((b.name, "int8"), 0.0) for b in blocks}
    total = sum(each for each in saved.values() if each > 0.0)
    rows = []
    for block in blocks:
        noise, part = shares.get(block.name, 0.0), max(0.0, saved[block.name]) / total if total > 0.0 else 0.0
        rows.append(
            Sensitivity(
                block.name,
                block.kind,
                alone.get(block.name),
                noise,
                times.get((block.name, "float32"), 0.0),
                times.get((block.name, "int8"), 0.0),
                _reason(saved[block.name], noise, part, len(blocks)),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.damage or 0.0)))


def ranks(rows: Sequence[Sensitivity]) -> dict[str, dict[str, int]]:
    """Rank by block, 1 the largest, by "damage", by seconds "saved" and by "worth", seconds saved per damage."""
    values: dict[str, list[float]] = {
        "damage": [row.damage or 0.0 for row in rows],
        "saved": [row.saved_s for row in rows],
        "worth": [row.saved_per_damage_s or 0.0 for row in rows],
    }
    return {
        name: {rows[i].block: n + 1 for n, i in enumerate(sorted(range(len(rows)), key=lambda i, v=each: -v[i]))}  # type: ignore[misc]
        for name, each in values.items()
    }


def _reason(saved_s: float, noise: float, part: float, blocks: int) -> str:
    if saved_s <= 0.0:
        return f"slower in int8 by {-saved_s * 1e6:.0f} us"
    if noise * blocks > 1.0 and noise > _OUT_OF_PROPORTION * part:
        return f"{noise:.0%} of the noise for {part:.1%} of the time saved"
    return ""


def _noise_shares(error: ErrorModel) -> Mapping[str, float]:
    """Each block's share of the noise, in the output with the largest error when everything is in int8."""
    sums = {
        output.output: {each.block: each.own for each in output.blocks if each.precision == "int8"}
        for output in error.outputs
    }
    if not sums:
        return {}
    worst = max(error.outputs, key=lambda output: output.from_noise(sum(sums[output.output].values())))
    own = sums[worst.output]
    total = sum(own.values())
    return {block: value / total for block, value in own.items()} if total > 0.0 else {}
