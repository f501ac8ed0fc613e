"""Which readers of an assignment want a tensor in another state, and when it comes to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoddl.plan import OUTPUT, Redistribution
from autoddl.sbp.program import Program
from autoddl.search.problem import Edge, Problem

Reader = tuple[str, str]
"""An op and the operand by which it reads a tensor; OUTPUT and nothing for what the graph returns."""


def redistributions_of(problem: Problem, assignment: Sequence[int]) -> tuple[Redistribution, ...]:
    """Return what readers want in another state, edge by edge."""
    made, want = (states.tolist() for states in problem.states(assignment))
    known: dict[int, list[Reader]] = problem.notes.setdefault("readers", {})
    found = []
    for index in problem.redistributed(assignment):
        edge, source = problem.edges[index], made[index]
        if index not in known:
            known[index] = _readers(problem, edge)
        first, last = problem.flat.first_reader[index : index + 2]
        wanted: dict[int, list[Reader]] = {}
        for goal, reader in zip(want[first:last], known[index], strict=True):
            wanted.setdefault(goal, []).append(reader)
        for goal, readers in wanted.items():
            if goal != source:
                path = edge.table.path(edge.table.states[source], edge.table.states[goal])
                found.append(Redistribution(edge.tensor, path, tuple(dict.fromkeys(readers))))
    return tuple(found)


def _readers(problem: Problem, edge: Edge) -> list[Reader]:
    """Return who reads a tensor, as a plan names it, for each reader of its edge."""
    program, found = problem.program, []
    left: dict[int, list[str]] = {}
    for index, _ in edge.readers:
        node = problem.nodes[index]
        if node.kind == "output":
            found.append((OUTPUT, ""))
        elif node.kind == "op":
            if index not in left:
                own = problem.written.get(edge.tensor)
                operands = [o for o, t in program.op[node.name].inputs if t == edge.tensor]
                left[index] = [o for o in operands if own != (node.name, o)]
            found.append((node.name, left[index].pop(0)))
        else:
            update = program.op[program.parameter[node.name].update or ""]
            found.append((update.name, next(o for o, t in update.inputs if t == edge.tensor)))
    return found


def by_pass(
    program: Program, redistributions: Sequence[Redistribution]
) -> tuple[Redistribution, ...]:
    """Let parameters come for the forward and for the backward pass, each just before it reads them."""
    parameters = {p.tensor for p in program.parameters}
    position = {op.name: n for n, op in enumerate(program.ops)}
    found = []
    for item in redistributions:
        passes: dict[str, list[tuple[str, str]]] = {}
        for reader in item.readers:
            op = program.op.get(reader[0])
            passes.setdefault("" if op is None else op.phase, []).append(reader)
        if item.tensor not in parameters or "" in passes:
            found.append(item)
            continue
        for readers in passes.values():
            first = min(readers, key=lambda reader: position[reader[0]])
            others = [program.producer.get(t) for _, t in program.op[first[0]].inputs]
            before = [op.name for op in others if op is not None]
            after = max(before, key=position.__getitem__, default="")
            found.append(replace(item, readers=tuple(readers), after=after))
    return tuple(found)
