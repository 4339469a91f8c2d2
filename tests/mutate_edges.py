"""Wrong edges, put into a true trace: does re-executing it show each of them?

Kinds of a mutation (each is what some fault of dataflow analysis would produce):

* `iteration`: an input reads what its producer made in another iteration (of this or another instance of the loop);
* `branch`: the Merge behind a conditional reads the other side's value of an earlier iteration;
* `operands`: two inputs of one dtype change places, on ops that do not commute;
* `rule`: an input reads the iteration before in *every* execution of its node;
* `variable`: two accesses to a variable, one of them a write, change places because nothing keeps their order;
* `structure`: a step is run along the edges of another step that took other branches or trips.

What is counted. A mutation is a *trial* when it can matter:

* the execution that reads the wrong edge gives something else than before (an Identity of a tensor that happens to be equal, a Shape of
  a tensor of the same shape, `3 < 5` in the place of `2 < 5` do not: such an edge is `without effect`);
* data edges lead from there to a fetch, a variable or the predicate of a Switch (else it `leads nowhere`, as does a wrong element of a
  list that nobody takes out);
* not all that changed ends in comparisons that come out as before (else it `ended in a comparison`: a wrong counter may go to a Less
  whose answer is the same; the kind `rule` has the same edge wrong in every iteration, where some answer differs).

A trial is noticed when the outputs or final variables are not TensorFlow's, or the re-execution cannot be done (`impossible`): a branch,
a dtype or a shape comes out other than the trace says, or a kernel fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy_kernels import Optional, TensorList
from reexecute import Reexecution, Result, same

COMMUTATIVE = frozenset({"Add", "AddN", "AddV2", "BroadcastArgs", "Maximum", "Minimum", "Mul", "SquaredDifference"})
SYMMETRIC = frozenset({"Equal", "LogicalAnd", "LogicalOr", "NotEqual"})
COMPARISONS = SYMMETRIC | {"Greater", "GreaterEqual", "Less", "LessEqual", "LogicalNot"}
NOTICED = ("values", "impossible")


@dataclass(frozen=True)
class Mutation:
    """Other input rows for some jobs, or another order of all jobs."""

    kind: str
    what: str
    replaced: dict[int, list[int]] = field(default_factory=dict)
    order: list[int] | None = None


@dataclass
class Tally:
    """How many mutations of each (kind, outcome), and what the unnoticed ones were."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    unnoticed: list[str] = field(default_factory=list)

    def trials(self, kind: str = "") -> int:
        """Mutations that can matter."""
        outcomes = (*NOTICED, "unnoticed")
        return sum(n for (k, outcome), n in self.counts.items() if outcome in outcomes and kind in ("", k))

    def noticed(self, kind: str = "") -> int:
        """Trials that changed the result."""
        return sum(n for (k, outcome), n in self.counts.items() if outcome in NOTICED and kind in ("", k))


class Mutator:
    """Mutations of one step, told apart by what re-executing them gives."""

    def __init__(self, reexecution: Reexecution, rng: Any) -> None:
        self.r, self.rng = reexecution, rng
        self.truth: Result = reexecution.run()
        self.rows_of: dict[tuple[int, int], list[int]] = {}
        for row, producer in enumerate(reexecution.producer):
            self.rows_of.setdefault((reexecution.jobs[producer].node, reexecution.port[row]), []).append(row)
        self.useful = self._useful()

    def run(self, tally: Tally, each: int) -> None:
        """Try up to `each` mutations of every kind that lies in one step."""
        for kind, candidates in self.kinds().items():
            pool = list(candidates())
            for k in self.rng.permutation(len(pool))[:each]:
                mutation = pool[k]
                outcome = self.outcome(mutation)
                tally.counts[kind, outcome] += 1
                if outcome == "unnoticed":
                    tally.unnoticed.append(f"{kind}: {mutation.what}")

    def kinds(self) -> dict[str, Callable[[], Iterator[Mutation]]]:
        """All mutations of each kind, for the asking."""
        return {
            "iteration": self._iterations,
            "branch": self._branches,
            "operands": self._operands,
            "rule": self._rules,
            "variable": self._variables,
        }

    # --- making -----------------------------------------------------------------------------------------------------------------

    def _key(self, row: int) -> tuple[int, int]:
        return self.r.jobs[self.r.producer[row]].node, self.r.port[row]

    def _earlier(self, row: int, number: int) -> list[int]:
        """The same output in other iterations, made before job `number` (a later one would be a cycle, which no trace may hold)."""
        return [other for other in self.rows_of[self._key(row)] if other != row and self.r.producer[other] < number]

    def _with(self, kind: str, number: int, position: int, row: int) -> Mutation:
        job = self.r.jobs[number]
        rows = [row if k == position else old for k, old in enumerate(job.inputs)]
        made = self.r.name_of(self.r.jobs[self.r.producer[row]])
        return Mutation(kind, f"input {position} of {self.r.name_of(job)} reads {made}", {number: rows})

    def _iterations(self) -> Iterator[Mutation]:
        for number, job in enumerate(self.r.jobs):
            for position, row in enumerate(job.inputs):
                others = self._earlier(row, number)
                if others:
                    yield self._with("iteration", number, position, others[self.rng.integers(len(others))])

    def _branches(self) -> Iterator[Mutation]:
        nodes = self.r.trace.nodes
        for number, job in enumerate(self.r.jobs):
            if job.op != "Merge":
                continue
            span = nodes.row_values("input", job.node)
            edges = list(zip(nodes.input_node[span].tolist(), nodes.input_port[span].tolist(), strict=True))
            data = [e for e in edges if e[1] >= 0]
            if any(self.r.trace.node_ops[n] == "NextIteration" for n, _ in data):
                continue
            mine = self._key(job.inputs[0])
            others = [row for edge in data if edge != mine for row in self.rows_of.get(edge, []) if self.r.producer[row] < number]
            if others:
                yield self._with("branch", number, 0, others[-1])

    def _operands(self) -> Iterator[Mutation]:
        for number, job in enumerate(self.r.jobs):
            if job.op in COMMUTATIVE | SYMMETRIC or len(job.inputs) < 2:
                continue
            dtypes = [self._dtype(row) for row in job.inputs]
            pairs = [(i, j) for i in range(len(dtypes)) for j in range(i + 1, len(dtypes)) if dtypes[i] == dtypes[j]]
            if pairs:
                i, j = pairs[self.rng.integers(len(pairs))]
                rows = list(job.inputs)
                rows[i], rows[j] = rows[j], rows[i]
                yield Mutation("operands", f"inputs {i} and {j} of {self.r.name_of(job)} change places", {number: rows})

    def _dtype(self, row: int) -> str:
        producer = self.r.jobs[self.r.producer[row]]
        return producer.expected[row - producer.first_row][0]

    def _rules(self) -> Iterator[Mutation]:
        for node in sorted({job.node for job in self.r.jobs}):
            numbers = self.r.jobs_of(node)
            for position in range(len(self.r.jobs[numbers[0]].inputs) if len(numbers) > 1 else 0):
                replaced = {}
                for number in numbers:
                    rows = list(self.r.jobs[number].inputs)
                    before = [row for row in self.rows_of[self._key(rows[position])] if row < rows[position]]
                    if before:
                        rows[position] = before[-1]
                        replaced[number] = rows
                if replaced:
                    what = f"input {position} of every {self.r.name_of(self.r.jobs[numbers[-1]])} reads the iteration before"
                    yield Mutation("rule", what, replaced)

    def _variables(self) -> Iterator[Mutation]:
        """Pairs of accesses with no write between them, moved past each other where data allow it."""
        by_variable: dict[int, list[int]] = {}
        for number, (variables, _, _) in sorted(self.r.accesses.items()):
            for variable in variables:
                by_variable.setdefault(variable, []).append(number)
        for numbers in by_variable.values():
            for k, second in enumerate(numbers):
                for first in reversed(numbers[:k]):
                    writes = self.r.accesses[first][2], self.r.accesses[second][2]
                    order = self._swapped(first, second) if any(writes) else None
                    if order:
                        what = f"{self.r.name_of(self.r.jobs[second])} before {self.r.name_of(self.r.jobs[first])}"
                        yield Mutation("variable", what, order=order)
                    if writes[0]:
                        break

    def _swapped(self, first: int, second: int) -> list[int] | None:
        """The stored order with `second` and what it computes from moved before `first`; None where that needs another access."""
        moved, waiting = {second}, [second]
        while waiting:
            for row in self.r.jobs[waiting.pop()].inputs:
                producer = self.r.producer[row]
                if producer >= first and producer not in moved:
                    moved.add(producer)
                    waiting.append(producer)
        if any(number in self.r.accesses for number in moved if number != second):
            return None
        rest = [n for n in range(first, len(self.r.jobs)) if n not in moved]
        return [*range(first), *sorted(moved), *rest]

    # --- judging ----------------------------------------------------------------------------------------------------------------

    def outcome(self, mutation: Mutation) -> str:
        """What became of a mutation; see the module's docstring."""
        if not self._has_effect(mutation):
            return "without effect"
        touched = mutation.replaced or {n: [] for n in self._moved(mutation)}
        if not any(self._leads_somewhere(number, rows) for number, rows in touched.items()):
            return "leads nowhere"
        try:
            with np.errstate(all="ignore"):
                result = self.r.run(mutation.order, mutation.replaced, self.truth)
        except Exception:  # whatever fails in it, the wrong trace cannot be re-executed
            return "impossible"
        if self.r.difference(result):
            return "values"
        return self._end(mutation, result)

    def _moved(self, mutation: Mutation) -> list[int]:
        """The two accesses that a changed order swaps."""
        order = mutation.order or []
        place = {number: k for k, number in enumerate(order)}
        numbers = sorted(self.r.accesses)
        return [n for k, n in enumerate(numbers) if any((place[n] < place[o]) != (n < o) for o in numbers[:k] + numbers[k + 1 :])]

    def _has_effect(self, mutation: Mutation) -> bool:
        if mutation.order is not None:
            return self._order_matters(mutation.order)
        return any(self._gives_other(number, rows) for number, rows in mutation.replaced.items())

    def _gives_other(self, number: int, rows: list[int]) -> bool:
        """Whether a job computes something else from other rows, everything else being as it was."""
        job, values = self.r.jobs[number], self.truth.values
        inputs = [values[row] for row in rows]
        if number in self.r.accesses:
            return not all(same(x, values[old]) for x, old in zip(inputs, job.inputs, strict=True))
        try:
            with np.errstate(all="ignore"):
                outputs = self.r.compute(job, inputs, [], rows)
        except Exception:
            return True
        return not all(same(x, values[job.first_row + k]) for k, x in enumerate(outputs))

    def _order_matters(self, order: list[int]) -> bool:
        """Whether some access sees another value, or leaves another one, when only the accesses themselves run in the new order."""
        values, jobs = self.truth.values, self.r.jobs

        def replay(numbers: list[int]) -> tuple[dict[int, list[Any]], list[Any]]:
            state = [self.r.seen.before[name] for name in self.r.names]
            seen = {}
            for number in numbers:
                inputs = [values[row] for row in jobs[number].inputs]
                seen[number] = self.r.compute(jobs[number], inputs, state, jobs[number].inputs)
            return seen, state

        seen, state = replay(sorted(self.r.accesses))
        other, left = replay([n for n in order if n in self.r.accesses])
        if not all(map(same, state, left)):
            return True
        return any(not all(map(same, seen[n], other[n])) for n in seen if n in self.useful)

    def _useful(self) -> set[int]:
        """Jobs from which data edges lead to a fetch, a variable or a predicate."""
        waiting = [self.r.producer[row] for row in self.r.fetch_rows().values()]
        waiting += [number for number, (_, _, writes) in self.r.accesses.items() if writes]
        waiting += [self.r.producer[job.inputs[1]] for job in self.r.jobs if job.op in ("Switch", "_SwitchN")]
        found = set(waiting)
        while waiting:
            for row in self.r.jobs[waiting.pop()].inputs:
                if self.r.producer[row] not in found:
                    found.add(self.r.producer[row])
                    waiting.append(self.r.producer[row])
        return found

    def _leads_somewhere(self, number: int, rows: list[int]) -> bool:
        job = self.r.jobs[number]
        is_predicate = job.op in ("Switch", "_SwitchN") and bool(rows) and rows[1] != job.inputs[1]
        return number in self.useful or is_predicate

    def _end(self, mutation: Mutation, result: Result) -> str:
        """Where what changed came to an end, given that no output and no variable did."""
        changed = {row for row, (x, y) in enumerate(zip(result.values, self.truth.values, strict=True)) if not same(x, y)}
        is_seen = False
        for number, job in enumerate(self.r.jobs):
            made = range(job.first_row, job.first_row + len(job.ports))
            if number not in self.useful:
                continue
            is_seen |= any(row in changed and not isinstance(self.truth.values[row], TensorList | Optional) for row in made)
            read = zip(mutation.replaced.get(number, job.inputs), job.inputs, strict=True)
            other = [old for row, old in read if not same(result.values[row], self.truth.values[old])]
            is_end = bool(other) and not any(row in changed for row in made) and job.op not in COMPARISONS
            if is_end and not all(isinstance(self.truth.values[row], TensorList) for row in other):
                return "unnoticed"
        return "ended in a comparison" if is_seen else "leads nowhere"


def wrong_structure(tally: Tally, mine: Reexecution, other: Reexecution) -> None:
    """Re-execute a step along the edges of another one of the same trace."""
    wrong = Reexecution(mine.trace, mine.seen, mine.side_file, other.structure)
    try:
        outcome = "values" if wrong.difference(wrong.run()) else "unnoticed"
    except Exception:  # as above
        outcome = "impossible"
    tally.counts["structure", outcome] += 1
    if outcome == "unnoticed":
        tally.unnoticed.append(f"structure: step {mine.seen.step} along structure {other.structure}")
