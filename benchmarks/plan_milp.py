"""A planning problem as a mixed-integer program for HiGHS, as rivals do: tight, exact, slow on large problems.

One binary x per node and label still alive. For an edge between two undecided ends, y[p, s] is the product of the
producer's state p and the reader's state s, tied to both by its sums (the local polytope). Per value, source device a
and destination d there are copies f (float) and i (int8), binary where both could do; z quantises at the source and q
at the destination. A float reader needs f, or o (dequantised from an int8 copy); an int8 reader needs i or q:

    f + o ≥ Σ y (float readers)     i + q ≥ Σ y (int8 readers)     q ≤ f     o ≤ i     z ≥ i     z ≥ y (int8, at home)

States (device and kind) rather than labels index y. Costs and what limits count are those of cluster/planning/costs.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind
from taglio.plan.highs import Quiet, SolverFailed

INFINITY = float("inf")
State = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best labels and copies that HiGHS found (None where none), its proven bound, and whether it proved that
    there is no labelling at all."""

    labels: np.ndarray | None
    copies: np.ndarray | None
    bound: float
    infeasible: bool


@dataclass(slots=True)
class _Matrix:
    """Columns with their costs, and rows, as lists in the making."""

    width: int
    cost: list[np.ndarray] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def column(self, cost: np.ndarray, integral: bool = False, upper: float = 1.0) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        self.integral.append(integral)
        return len(self.cost) - 1

    def row(self, low: float, high: float, terms: Sequence[tuple[int, float]]) -> None:
        self.low.append(low)
        self.high.append(high)
        summed: dict[int, float] = {}  # HiGHS takes no column twice in a row
        for column, value in terms:
            summed[column] = summed.get(column, 0.0) + value
        self.columns += summed
        self.values += summed.values()
        self.starts.append(len(self.columns))


# A linear expression of columns: a constant and terms.
Expression = tuple[float, list[tuple[int, float]]]


class Program:
    """The program of a costs whose nodes may take labels that are alive, a mask (nodes, labels)."""

    def __init__(self, costs: Costs, alive: np.ndarray) -> None:
        self.costs, self.alive = costs, [np.flatnonzero(row) for row in alive]
        tables = costs.limited
        self.width, self.unary = tables.unary.shape[-1], tables.unary
        self.send = {Copies.FLOAT: tables.send_float, Copies.INT8: tables.send_int8}
        self.quantize, self.dequantize = tables.quantize, tables.dequantize
        self.edge, self.wire = tables.edge, tables.wire
        self.nothing = np.zeros(self.width)
        self.fixed = np.zeros(self.width)
        self.fixed[0] = costs.problem.constant
        self.matrix = _Matrix(self.width)
        self.x: list[list[int]] = []
        self.copies: dict[tuple[int, int, int, Copies], int] = {}
        self._nodes()
        for value in range(len(costs.problem.values)):
            self._value(value)
        for implication in costs.problem.implications:
            ends = [(implication.node, implication.labels), *implication.neighbours]
            constant, terms = _sum([self._mask(node, mask) for node, mask in ends])
            self.matrix.row(-INFINITY, len(ends) - 1.0 - constant, terms)

    def _nodes(self) -> None:
        for node, labels in enumerate(self.alive):
            if len(labels) == 1:
                self.fixed += self.unary[node, labels[0]]
                self.x.append([])
                continue
            self.x.append([self.matrix.column(self.unary[node, label], True) for label in labels])
            self.matrix.row(1.0, 1.0, [(column, 1.0) for column in self.x[node]])

    def _mask(self, node: int, mask: np.ndarray) -> Expression:
        """Whether a node's label is in `mask`."""
        if not self.x[node]:
            return float(mask[self.alive[node][0]]), []
        return 0.0, [(c, 1.0) for c, label in zip(self.x[node], self.alive[node], strict=True) if mask[label]]

    def _states(self, node: int, home: int, kinds: np.ndarray) -> dict[State, Expression]:
        """States of an end with their indicators; `node` below 0 is outside, at home in float."""
        if node < 0:
            return {(home, int(Kind.FLOAT)): (1.0, [])}
        device = self.costs.label_device
        result: dict[State, Expression] = {}
        for index, label in enumerate(self.alive[node]):
            state = (int(device[label]), int(kinds[label]))
            if not self.x[node]:
                return {state: (1.0, [])}
            result.setdefault(state, (0.0, []))[1].append((self.x[node][index], 1.0))
        return result

    def _pairs(
        self, writes: dict[State, Expression], reads: dict[State, Expression], strict: bool
    ) -> dict[tuple[State, State], Expression]:
        """Indicators of every pair of states that may meet."""
        fits = {(p, s): not strict or p[1] == s[1] for p in writes for s in reads}
        if len(writes) == 1 or len(reads) == 1:
            pairs = {}
            for p, written in writes.items():
                for s, read in reads.items():
                    indicator = read if len(writes) == 1 else written
                    if fits[p, s]:
                        pairs[p, s] = indicator
                    else:
                        self.matrix.row(-INFINITY, -indicator[0], indicator[1])
            return pairs
        columns = {pair: self.matrix.column(self.nothing) for pair, fit in fits.items() if fit}
        for p, (_, terms) in writes.items():
            mine = [(columns[p, s], 1.0) for s in reads if (p, s) in columns]
            self.matrix.row(0.0, 0.0, mine + [(column, -value) for column, value in terms])
        for s, (_, terms) in reads.items():
            mine = [(columns[p, s], 1.0) for p in writes if (p, s) in columns]
            self.matrix.row(0.0, 0.0, mine + [(column, -value) for column, value in terms])
        return {pair: (0.0, [(column, 1.0)]) for pair, column in columns.items()}

    def _charge(self, indicator: Expression, cost: np.ndarray) -> None:
        """Add `cost` times an indicator."""
        constant, terms = indicator
        if constant:
            self.fixed += constant * cost
        for column, value in terms:
            self.matrix.cost[column] = self.matrix.cost[column] + value * cost

    def _at_least(self, columns: Sequence[int], indicators: Sequence[Expression]) -> None:
        """Σ columns ≥ each indicator."""
        for constant, terms in indicators:
            row = [(column, 1.0) for column in columns] + [(column, -value) for column, value in terms]
            self.matrix.row(constant, INFINITY, row)

    def _at_most(self, column: int, indicators: Sequence[Expression]) -> None:
        """A column that saves time is no more than Σ indicators: it is not taken without a reason."""
        constant, terms = _sum(indicators)
        self.matrix.row(-INFINITY, constant, [(column, 1.0), *((each, -value) for each, value in terms)])

    def _value(self, value: int) -> None:
        costs = self.costs
        values = costs.problem.values
        home = int(values.home[value])
        producer = int(values.producer[value])
        writes = self._states(-1 if producer == SOURCE else producer, home, costs.label_writes)
        # Indicators by (source, destination): of int8 producers and of float producers, what each reader wants.
        from_int8: dict[tuple[int, int], list[Expression]] = {}
        floats: dict[tuple[int, int], list[tuple[int, Expression]]] = {}
        ints: dict[tuple[int, int], list[Expression]] = {}
        at_home: dict[State, list[Expression]] = {}
        for edge in range(values.start[value], values.start[value + 1]):
            reader = int(values.readers[edge])
            reads = self._states(-1 if reader == CALLER else reader, home, costs.label_reads)
            pairs = self._pairs(writes, reads, bool(values.strict[edge]))
            by_route: dict[tuple[int, int, bool, bool], list[Expression]] = {}
            for ((a, kind), (d, read)), indicator in pairs.items():
                int8 = read == Kind.INT8
                if kind == Kind.INT8:
                    if not int8:
                        self._charge(indicator, self.dequantize[value, d])
                elif int8:
                    self._charge(indicator, self.edge[edge])
                    if a == d:
                        at_home.setdefault((a, kind), []).append(indicator)
                if a != d:
                    by_route.setdefault((a, d, kind == Kind.INT8, int8), []).append(indicator)
            both: dict[tuple[int, int], list[Expression]] = {}
            for (a, d, whole, int8), indicators in by_route.items():
                if whole:
                    both.setdefault((a, d), []).extend(indicators)
                elif int8:
                    ints.setdefault((a, d), []).append(_sum(indicators))
                else:
                    floats.setdefault((a, d), []).append((edge, _sum(indicators)))
            for route, indicators in both.items():
                from_int8.setdefault(route, []).append(_sum(indicators))
        for (a, d), wanted in from_int8.items():
            if any(terms for _, terms in wanted):
                self._at_least([self._copy(value, a, d, Copies.INT8)], wanted)
            else:
                self.fixed += self.send[Copies.INT8][value, a, d]
        self._float_copies(value, writes, floats, ints, at_home)

    def _copy(self, value: int, a: int, d: int, copy: Copies, integral: bool = False) -> int:
        """A column for a copy from a to d; 0 where it alone breaks a limit."""
        upper = 0.0 if self.costs.barred[copy][value, a, d] else 1.0
        return self.matrix.column(self.send[copy][value, a, d], integral, upper)

    def _float_copies(
        self,
        value: int,
        writes: dict[State, Expression],
        floats: dict[tuple[int, int], list[tuple[int, Expression]]],
        ints: dict[tuple[int, int], list[Expression]],
        at_home: dict[State, list[Expression]],
    ) -> None:
        """What goes elsewhere of a value written in float, and quantising it."""
        matrix = self.matrix
        wire_only = self.costs.problem.wire_only
        quantized: dict[State, int] = {}
        # Who reads the int8 copy that is made at each state of the producer.
        uses: dict[State, list[Expression]] = {state: list(indicators) for state, indicators in at_home.items()}

        def quantizer(state: State) -> int:
            if state not in quantized:
                quantized[state] = matrix.column(self.quantize[value, state[1], state[0]])
            return quantized[state]

        for a, d in dict.fromkeys([*floats, *ints]):
            readers, wanted = floats.get((a, d), []), ints.get((a, d), [])
            choice = bool(wanted) or wire_only
            f = self.copies[value, a, d, Copies.FLOAT] = self._copy(value, a, d, Copies.FLOAT, choice)
            i = -1
            if choice:
                i = self.copies[value, a, d, Copies.INT8] = self._copy(value, a, d, Copies.INT8, True)
                at = [state for state in writes if state[0] == a and state[1] != Kind.INT8]
                row = [(quantizer(state), 1.0) for state in at]
                matrix.row(0.0, INFINITY, [*row, (i, -1.0)])
                # Where the producer's kind is open, quantising counts as of the kind that it writes.
                for state in at:
                    uses.setdefault(state, []).append((0.0, [(i, 1.0)]))
                    constant, terms = writes[state]
                    if len(at) > 1:
                        flipped = [(column, -each) for column, each in terms]
                        matrix.row(-1.0 + constant, INFINITY, [(quantizer(state), 1.0), (i, -1.0), *flipped])
            if wanted:
                q = matrix.column(self.quantize[value, 0, d])
                self._at_least([i, q], wanted)
                matrix.row(0.0, INFINITY, [(f, 1.0), (q, -1.0)])
                if _saves(self.quantize[value, 0, d]):
                    matrix.row(-INFINITY, 1.0, [(q, 1.0), (i, 1.0)])
                    self._at_most(q, wanted)
            read = list(wanted)
            for edge, (constant, terms) in readers:
                columns = [f]
                if wire_only:
                    o = matrix.column(self.dequantize[value, d] + self.wire[edge])
                    matrix.row(0.0, INFINITY, [(i, 1.0), (o, -1.0)])
                    columns.append(o)
                    read.append((0.0, [(o, 1.0)]))
                    if _saves(self.dequantize[value, d]):
                        matrix.row(-INFINITY, 1.0, [(o, 1.0), (f, 1.0)])
                        self._at_most(o, [(constant, terms)])
                self._at_least(columns, [(constant, terms)])
            if i >= 0 and _saves(self.quantize[value, :, a]):
                self._at_most(i, read)
        for state, indicators in at_home.items():
            self._at_least([quantizer(state)], indicators)
        for state, column in quantized.items():
            if _saves(self.quantize[value, state[1], state[0]]):
                self._at_most(column, uses[state])
                self._at_most(column, [writes[state]])

    def solve(
        self,
        *,
        time_limit_s: float,
        gap: float,
        feasibility: bool = False,
        cutoff: float = INFINITY,
        target: float = -INFINITY,
    ) -> Found:
        """Run HiGHS; with `feasibility` the objective is nothing. Plans above `cutoff` need not be found, and one at or
        below `target` is good enough."""
        matrix, costs = self.matrix, self.costs
        count = len(matrix.cost)
        cost = np.array(matrix.cost).reshape(count, self.width)
        scale = 1.0
        if feasibility:
            cost[:, 0] = 0.0
        else:
            scale = 1e3 / max(1e-12, np.abs(cost[:, 0]).max(initial=0.0))
        limits = [(row, cost[:, 1 + row], costs.uppers[row] - self.fixed[1 + row]) for row in range(len(costs.rows))]
        if cutoff < INFINITY and not feasibility:
            limits.append((-1, cost[:, 0] * scale, (cutoff - self.fixed[0]) * scale))
        low, high = list(matrix.low), list(matrix.high)
        starts, columns, values = list(matrix.starts), [np.array(matrix.columns, dtype=np.int32)], [matrix.values]
        for _, line, upper in limits:
            used = np.flatnonzero(line)
            columns.append(used.astype(np.int32))
            values.append(line[used].tolist())
            starts.append(starts[-1] + len(used))
            low.append(-INFINITY)
            high.append(upper + 1e-9 * max(1e-6, abs(upper)))
        if count == 0:
            return self._decided(high[len(matrix.high) :])
        model = highspy.HighsModel()
        lp = model.lp_
        lp.num_col_, lp.num_row_ = count, len(low)
        lp.col_cost_, lp.offset_ = cost[:, 0] * scale, 0.0 if feasibility else float(self.fixed[0] * scale)
        lp.col_lower_, lp.col_upper_ = np.zeros(count), np.array(matrix.upper)
        lp.row_lower_, lp.row_upper_ = np.array(low), np.array(high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.concatenate(columns)
        lp.a_matrix_.value_ = np.concatenate([np.asarray(each, dtype=float) for each in values])
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[each] for each in matrix.integral]
        highs = Quiet()
        for name, option in (
            ("time_limit", max(0.01, time_limit_s)),
            ("mip_rel_gap", gap),
            ("random_seed", 0),
            ("objective_target", target * scale),
        ):
            highs.setOptionValue(name, option)
        if highs.passModel(model) == highspy.HighsStatus.kError:  # run on what is left, HiGHS may never end
            raise SolverFailed(f"HiGHS refuses a program of {count} columns and {len(low)} rows")
        try:
            highs.run()
        except SolverFailed:
            return Found(None, None, -INFINITY, False)
        status, info = highs.getModelStatus(), highs.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Found(None, None, INFINITY, True)
        # Without integers it is a linear program, of which HiGHS knows no dual bound: the optimum is one.
        linear = not any(matrix.integral) and status == highspy.HighsModelStatus.kOptimal
        bound = float(info.objective_function_value if linear else info.mip_dual_bound) / scale
        bound = -INFINITY if feasibility else bound
        found = np.array(highs.getSolution().col_value)
        if len(found) != count or info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Found(None, None, bound, False)
        return Found(*self._read(found), bound, False)

    def _decided(self, room: Sequence[float]) -> Found:
        """The answer where nothing is left to choose."""
        rows_hold = all(
            low <= 0.0 <= high for low, high in zip(self.matrix.low, self.matrix.high, strict=True)
        ) and all(each >= 0.0 for each in room)
        if not rows_hold:
            return Found(None, None, INFINITY, True)
        return Found(*self._read(np.zeros(0)), float(self.fixed[0]), False)

    def _read(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and copies of a solution."""
        labels = np.array(
            [
                each[0] if not columns else each[int(np.argmax(found[columns]))]
                for each, columns in zip(self.alive, self.x, strict=True)
            ],
            dtype=np.intp,
        )
        chosen: dict[tuple[int, int], dict[int, Copies]] = {}
        for (value, a, d, copy), column in self.copies.items():
            if found[column] > 0.5:
                at = chosen.setdefault((value, a), {})
                at[d] = at.get(d, Copies(0)) | copy
        ends = self.costs.ends(labels)
        start = self.costs.problem.values.start
        copies = np.zeros((len(self.costs.problem.values), self.costs.devices), dtype=np.intp)
        for value, source in enumerate(ends.place.tolist()):
            edges = range(start[value], start[value + 1])
            needed: dict[int, bool] = {}
            for edge in edges:
                if ends.to[edge] != source:
                    needed[int(ends.to[edge])] = needed.get(int(ends.to[edge]), True) and bool(ends.int8[edge])
            got = chosen.get((value, source), {})
            for d in needed:
                copies[value, d] = Copies.INT8 if ends.kind[value] == Kind.INT8 else got.get(d, Copies.FLOAT)
        return labels, copies


def _saves(cost: np.ndarray) -> bool:
    """Whether something costs less than nothing."""
    return bool((cost < 0.0).any())


def _sum(expressions: Sequence[Expression]) -> Expression:
    return sum(constant for constant, _ in expressions), [term for _, terms in expressions for term in terms]
