"""Which blocks cause error, which save time, and which to leave out of quantisation and why. Values in, values out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    alone = {block.block: block.error for block in error.alone if block.precision == "int8"}
    shares = _noise_shares(error)
    rows = [
        Sensitivity(
            block=block.name,
            kind=block.kind,
            damage=alone.get(block.name),
            noise_share=shares.get(block.name, 0.0),
            float_s=times.get((block.name, "float32"), 0.0),
            int8_s=times.get((block.name, "int8"), 0.0),
            leave_out="",
        )
        for block in graph.candidates()
        if not block.movement
    ]
    total_s = sum(row.saved_s for row in rows if row.saved_s > 0.0)
    rows = [replace(row, leave_out=_reason(row, total_s, len(rows))) for row in rows]
    return tuple(sorted(rows, key=lambda row: -(row.damage or 0.0)))


def ranks(rows: Sequence[Sensitivity]) -> dict[str, dict[str, int]]:
    """Rank by block, 1 the largest, by "damage", by seconds "saved" and by "worth", seconds saved per damage."""
    values: dict[str, Callable[[Sensitivity], float]] = {
        "damage": lambda row: row.damage or 0.0,
        "saved": lambda row: row.saved_s,
        "worth": lambda row: row.saved_per_damage_s or 0.0,
    }
    return {
        name: {row.block: place for place, row in enumerate(sorted(rows, key=value, reverse=True), 1)}
        for name, value in values.items()
    }


def _reason(row: Sensitivity, total_s: float, blocks: int) -> str:
    """Why to leave a block out, if it is one of `blocks`, which save `total_s`; else ""."""
    if row.saved_s <= 0.0:
        return f"slower in int8 by {-row.saved_s * 1e6:.0f} us"
    part = max(0.0, row.saved_s) / total_s if total_s > 0.0 else 0.0
    if row.noise_share * blocks > 1.0 and row.noise_share > _OUT_OF_PROPORTION * part:
        return f"{row.noise_share:.0%} of the noise for {part:.1%} of the time saved"
    return ""


def _noise_shares(error: ErrorModel) -> Mapping[str, float]:
    """Each block's share of the noise, in the output with the largest error when everything is in int8."""
    sums = {
        output.output: {block.block: block.own for block in output.blocks if block.precision == "int8"}
        for output in error.outputs
    }
    if not sums:
        return {}
    worst = max(error.outputs, key=lambda output: output.from_noise(sum(sums[output.output].values())))
    own = sums[worst.output]
    total = sum(own.values())
    return {block: value / total for block, value in own.items()} if total > 0.0 else {}
