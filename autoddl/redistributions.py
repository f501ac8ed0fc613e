"""Which readers of an assignment want a tensor in another state, and when it comes to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoddl.plan import OUTPUT, Redistribution
from autoddl.sbp.state import NdSbp
from autoddl.search.passes import last_before
from autoddl.search.problem import KEPT, Edge, Node, Problem
from autoddl.search.result import Assignment

Reader = tuple[str, str]
"""An op and the operand by which it reads a tensor; OUTPUT and nothing for what the graph returns."""
_Wanted = dict[int, list[Reader]]  # by state


def redistributions_of(problem: Problem, assignment: Sequence[int]) -> tuple[Redistribution, ...]:
    """Return what readers want in another state, edge by edge.

    Of a tensor that waits for the backward pass (search/passes.py) the boxings of that pass come just
    before they are read, and those of the forward pass, too, if nothing in it makes the tensor.
    """
    return tuple(_Redistributions(problem, assignment).all())


class _Redistributions:
    """The states of all tensors under an assignment."""

    def __init__(self, problem: Problem, assignment: Assignment | Sequence[int]) -> None:
        self.problem = problem
        self.changed = problem.redistributed(assignment)
        self.made, self.want = (states.tolist() for states in problem.states(assignment))
        self.readers = readers_of(problem)

    def all(self) -> Iterator[Redistribution]:
        """Yield the redistributions; where a tensor waits, those of both passes together."""
        nodes, edges = self.problem.nodes, self.problem.edges
        waits = [nodes[edges[index].producer].kind == KEPT for index in self.changed]
        pairs = zip(self.changed, waits, strict=True)
        for index in dict.fromkeys(i - later for i, later in pairs):  # it stands behind the first
            edge, source, wanted = edges[index], self.made[index], self._wanted(index)
            waiting = any(nodes[node].kind == KEPT for node, _ in edge.readers)
            later = self._wanted(index + 1) if waiting else {}
            held = self.made[index + 1] if waiting else source
            if held != source and held in later:
                wanted.setdefault(held, []).extend(later[held])
            given = waiting and nodes[edge.producer].kind != "op"
            for goal, readers in wanted.items():
                if goal != source:
                    path = _path(edge, source, goal)
                    after = self._before(readers) if given and goal != held else ""
                    yield Redistribution(edge.tensor, path, tuple(dict.fromkeys(readers)), after)
            for goal, readers in later.items():
                if goal != held:
                    before, path = _path(edge, source, held), _path(edge, held, goal)
                    after = self._before(readers)
                    yield Redistribution(
                        edge.tensor, (*before, *path), tuple(dict.fromkeys(readers)),
                        after, len(before) if after else 0,
                    )  # fmt: skip

    def _wanted(self, index: int) -> _Wanted:
        """Return the readers of an edge by the state that they want."""
        first, last = self.problem.flat.first_reader[index : index + 2]
        found: _Wanted = {}
        for goal, reader in zip(self.want[first:last], self.readers[first:last], strict=True):
            if reader is not None:
                found.setdefault(goal, []).append(reader)
        return found

    def _before(self, readers: Sequence[Reader]) -> str:
        return last_before(self.problem.program, [name for name, _ in readers])


def _path(edge: Edge, source: int, goal: int) -> tuple[NdSbp, ...]:
    states = edge.table.states
    return () if source == goal else edge.table.path(states[source], states[goal])


def readers_of(problem: Problem) -> Sequence[Reader | None]:
    """Return who reads a tensor, as a plan names it, edge by edge; None where the tensor waits."""
    if "readers" not in problem.notes:
        problem.notes["readers"] = [
            _reader(problem, edge.tensor, problem.nodes[index], operand)
            for edge in problem.edges
            for (index, _), operand in zip(edge.readers, edge.operands[1:], strict=True)
        ]
    found: list[Reader | None] = problem.notes["readers"]
    return found


def _reader(problem: Problem, tensor: str, node: Node, operand: str) -> Reader | None:
    if node.kind == "op":
        return node.name, operand
    if node.kind == KEPT:
        return None
    if node.kind == "output":
        return OUTPUT, ""
    program = problem.program
    update = program.op[program.parameter[node.name].update or ""]
    return update.name, next(o for o, t in update.inputs if t == tensor)
