"""The problem of planning: a cost network of nodes with choices and of tensors between them.

A node is an op, a graph input, a graph output, or a parameter together with its optimizer states and
its update (they share one state). A tensor is charged once for every state that its consumers want.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from autoddl.errors import InfeasibleError
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.sizes import LocalSizes
from autoddl.perfmodel.step import StepPrices
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Parameter, Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp, broadcast
from autoddl.search.columns import (
    GRADIENT,
    KEPT,
    TENSOR,
    Edge,
    EdgeColumns,
    Node,
    NodeColumns,
    Tuples,
)
from autoddl.search.flat import Flat
from autoddl.search.result import Assignment, SearchResult

__all__ = ["GRADIENT", "KEPT", "TENSOR", "Edge", "Floats", "Ints", "Node", "Problem"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise Σ compute + Σ redistributions over one choice per node.

    `written` maps variables that an op updates in place to that op and its operand: they have the
    state that the op chooses for them, and no node of their own. With `compute_stream` boxings are
    ops of the compute stream: they take less memory, and nothing overlaps. `notes` keeps what others
    have computed of this problem, `common` what does not depend on nodes and edges: problems that are
    made of this one by `dataclasses.replace` have it, too.
    """

    program: Program
    mesh: Mesh
    profile: Profile
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    written: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    compute_stream: bool = False
    common: dict[object, Any] = field(default_factory=dict, repr=False)
    notes: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """Return what is noted under a key; it is made the first time."""
        return _noted(self.notes, key, make)

    @cached_property
    def node_columns(self) -> NodeColumns:
        """Return the nodes as columns."""
        return NodeColumns.of(self.nodes)

    @cached_property
    def edge_columns(self) -> EdgeColumns:
        """Return the edges as columns."""
        return EdgeColumns.of(self.edges)

    @property
    def ops(self) -> Ints:
        """Return for every node the position of its op in the program; -1 for nodes of other kinds."""
        return self.once("ops", self._ops)

    @property
    def tensors(self) -> Ints:
        """Return for every edge the number of its tensor in the program."""
        return self.once("tensors", self._tensors)

    def knowing(self, ops: Ints, tensors: Ints) -> Problem:
        """Note the `ops` and the `tensors` where they are known, and return the problem."""
        self.notes.update(ops=ops, tensors=tensors)
        return self

    def _ops(self) -> Ints:
        columns, number = self.node_columns, self.program.columns.place
        found = np.full(len(columns.form), -1)
        nodes = columns.where("op")
        found[nodes] = [number[columns.name[node]] for node in nodes.tolist()]
        return found

    def _tensors(self) -> Ints:
        number = self.program.columns.number
        return np.array([number[name] for name in self.edge_columns.tensor], dtype=np.int64)

    @cached_property
    def touching(self) -> Sequence[tuple[int, ...]]:
        """Return for every node the edges that it makes or reads."""
        return Tuples(*self.flat.touching)

    @cached_property
    def position(self) -> Mapping[tuple[str, str], int]:
        """Return the index of every node by (kind, name)."""
        nodes = self.node_columns
        kinds = [nodes.kinds[number] for number in nodes.kind.tolist()]
        return dict(zip(zip(kinds, nodes.name, strict=True), range(len(kinds)), strict=True))

    @cached_property
    def least_memory_bytes(self) -> int:
        """Return the bytes below which no assignment's `memory_bytes` is."""
        return int(self._least("memory_bytes").sum())

    @cached_property
    def prices(self) -> StepPrices:
        """Return the prices of single ops and boxings, for all assignments that are estimated."""
        parts = self.program, self.mesh, self.profile
        key = StepPrices, *map(id, parts)  # they stay what they are: it keeps them
        return _noted(self.common, key, lambda: StepPrices(*parts))

    @cached_property
    def sizes(self) -> LocalSizes:
        """Return what ops and tensors take on one device, for all assignments that are estimated."""
        parts = self.program, self.mesh.shape
        key = LocalSizes, id(parts[0]), parts[1]
        return _noted(self.common, key, lambda: LocalSizes(*parts))

    @cached_property
    def flat(self) -> Flat:
        """Return the prices of all nodes and edges one behind the other."""
        return Flat(self.node_columns, self.edge_columns)

    @cached_property
    def modules(self) -> tuple[Ints, Sequence[str]]:
        """Return for every node the number of its module, and the names of the modules.

        It is that of an op or a parameter, or of what makes a kept tensor; others have "".
        """
        columns, program = self.node_columns, self.program.columns
        names = {name: number for number, name in enumerate(program.modules)}
        maker, kept = self.ops.copy(), np.flatnonzero(columns.of_kind(KEPT))
        maker[kept] = program.maker[[program.number[columns.name[n]] for n in kept.tolist()]]
        found = np.append(program.module, -1)[maker]
        held = columns.of_kind("parameter", KEPT)
        for node in np.flatnonzero(maker < 0).tolist():
            module = columns.name[node].rpartition(".")[0] if held[node] else ""
            found[node] = names.setdefault(module, len(names))
        return found, tuple(names)

    def update_signature(self, parameter: Parameter, state: NdSbp) -> NdSignature:
        """Return the signature of a parameter's update, one object for equal ones."""
        operands = self.notes.setdefault("updates", {})
        if parameter.update not in operands:
            follows = {parameter.tensor, parameter.gradient, *parameter.states}
            inputs = self.program.op[parameter.update or ""].inputs
            pattern = tuple([(o, t in follows) for o, t in inputs])
            operands[parameter.update] = operands.setdefault(pattern, pattern)  # equal ones once
        known = self.notes.setdefault("signatures of updates", {})
        key = operands[parameter.update], state
        if key not in known:
            one = broadcast(self.mesh.ndim)
            known[key] = {o: state if follows else one for o, follows in key[0]}
        found: NdSignature = known[key]
        return found

    def costs(self, assignment: Sequence[int]) -> tuple[float, int]:
        """Return the seconds of a step under an assignment, and its bytes (see `memory_bytes`)."""
        compute_s, communication_s, held = self.flat.costs(assignment)
        return compute_s + communication_s, held

    def cost_s(self, assignment: Sequence[int]) -> float:
        """Return the seconds of a step under an assignment."""
        return self.costs(assignment)[0]

    def compute_s(self, assignment: Sequence[int]) -> float:
        """Return the compute part of the cost."""
        return self.flat.costs(assignment)[0]

    def communication_s(self, assignment: Sequence[int]) -> float:
        """Return the redistribution part of the cost."""
        return self.flat.costs(assignment)[1]

    def memory_bytes(self, assignment: Sequence[int]) -> int:
        """Return the bytes per device that can be summed up node by node, under an assignment.

        That is less than a plan takes (perfmodel.memory.estimate): boxings and what lives for a
        short time are not in it.
        """
        return self.flat.costs(assignment)[2]

    def states(self, assignment: Sequence[int]) -> tuple[Ints, Ints]:
        """Return the state of each edge's tensor, and those that its readers want, edge by edge.

        States are indices into the edges' tables.
        """
        return self.flat.states(assignment)

    def redistributed(self, assignment: Sequence[int]) -> list[int]:
        """Return the edges of which some reader wants another state than the producer makes."""
        return self.flat.redistributed(assignment)

    def lower_bound_s(self) -> float:
        """Return a cost that no assignment can beat: every node's cheapest compute, no traffic."""
        return self._least_s

    @cached_property
    def _least_s(self) -> float:
        return float(sum(self._least("compute_s").tolist()))

    def _least(self, what: str) -> npt.NDArray[Any]:
        """Return the least entry of an array of every node."""
        columns = self.node_columns
        return np.array([getattr(form, what).min() for form in columns.forms])[columns.form]

    def near(self, cost_s: float, gap: float) -> bool:
        """Tell whether a cost is within a gap > 0 of `lower_bound_s`."""
        return gap > 0 and cost_s * (1 - gap) <= self.lower_bound_s()

    def result(self, solver: str, assignment: Sequence[int]) -> SearchResult:
        """Return an assignment in the form that solvers return, without a search behind it."""
        cost_s, held = self.costs(assignment)
        return SearchResult(
            solver,
            tuple(assignment),
            cost_s,
            self.lower_bound_s(),
            held,
            (),
        )

    def check_memory(self, limit_bytes: int | None) -> None:
        """Raise InfeasibleError where no assignment fits; it names by how much and what is large."""
        if limit_bytes is None:
            return
        least = self.least_memory_bytes
        if least <= limit_bytes:
            return
        largest = sorted(self.nodes, key=lambda n: -int(n.memory_bytes.min()))[:3]
        names = ", ".join(f"{self._held_by(n)} ({int(n.memory_bytes.min()):,} B)" for n in largest)
        raise InfeasibleError(
            f"memory {limit_bytes:,} B per device on mesh {self.mesh}: every assignment needs at "
            f"least {least:,} B, {least - limit_bytes:,} B more; largest per device: {names}; "
            "give more memory or devices, or a smaller batch"
        )

    def _held_by(self, node: Node) -> str:
        """Name the tensors that a node's memory is for."""
        if node.kind == "op":
            return ", ".join(name for _, name in self.program.op[node.name].outputs)
        states = next((p.states for p in self.program.parameters if p.tensor == node.name), ())
        return f"{node.name} with its optimizer states" if states else node.name


def _noted(notes: dict[object, Any], key: object, make: Callable[[], _T]) -> _T:
    """Return what is noted under a key; it is made the first time."""
    if key not in notes:
        notes[key] = make()
    found: _T = notes[key]
    return found


def enumerate_assignments(problem: Problem) -> itertools.product[Assignment]:
    """Return an iterator over all assignments, in lexicographic order."""
    return itertools.product(*(range(len(node.choices)) for node in problem.nodes))
