"""Which readers of an assignment want a tensor in another state, and when it comes to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from autoddl.owners import owners_of
from autoddl.perfmodel.moves import Moves, Moving, Path
from autoddl.perfmodel.rank import NONE, Flags, Ints, Table
from autoddl.perfmodel.redistribute import RedistributionTable
from autoddl.plan import OUTPUT, Redistribution, Rows
from autoddl.sbp.program import Program
from autoddl.search.problem import KEPT, Problem

Reader = tuple[str, str]
"""An op and the operand by which it reads a tensor; OUTPUT and nothing for what the graph returns."""
HELD = -2  # in place of a slot: nobody reads the tensor there, it waits


class Redistributions(Rows[Redistribution], Moving):
    """The redistributions of an assignment, made from their columns when one is first read."""

    def __init__(self, program: Program, moves: Moves) -> None:
        super().__init__(partial(_made, program, moves))
        self.program, self.moves = program, moves


def _made(program: Program, moves: Moves) -> tuple[Redistribution, ...]:
    """Return redistributions one by one."""
    readers: list[dict[Reader, None]] = [{} for _ in moves.tensor]
    for item, name in zip(moves.item.tolist(), _names(program, moves.slot), strict=True):
        readers[item][name] = None
    columns = (moves.tensor, moves.path, moves.after, moves.early)
    return tuple([
        Redistribution(
            program.tensors[tensor].name, moves.paths[path], tuple(found),
            "" if after == NONE else program.ops[after].name, early,
        )
        for found, tensor, path, after, early in zip(
            readers, *[column.tolist() for column in columns], strict=True
        )
    ])  # fmt: skip


def redistributions_of(problem: Problem, assignment: Sequence[int]) -> Redistributions:
    """Return what readers want in another state, edge by edge.

    Of a tensor that waits for the backward pass (search/passes.py) the boxings of that pass come just
    before they are read, and those of the forward pass, too, if nothing in it makes the tensor.
    """
    return Redistributions(problem.program, _moves(problem, assignment))


class Ends(NamedTuple):
    """Who reads the tensors of a problem: of each reader, edge by edge, the edge and the `slot`.

    That is its place among the inputs of all ops; NONE for what the graph returns, HELD where the
    tensor waits. By edge, `waits` tells whether its tensor has waited, and comes behind the edge of the
    same tensor as it was made; `given` which are those of tensors that no op makes.
    """

    edge: Ints
    slot: Ints
    waits: Flags
    given: Flags


def ends_of(problem: Problem) -> Ends:
    """Return who reads the tensors of a problem."""
    return problem.once("ends", lambda: _ends(problem))


def _ends(problem: Problem) -> Ends:
    nodes, edges, columns = problem.node_columns, problem.edge_columns, problem.program.columns
    inputs = columns.inputs
    producer = edges.node[edges.begin[:-1]]
    waits = nodes.of_kind(KEPT)[producer]
    given = np.append(waits[1:], False)[: len(waits)] & ~nodes.of_kind("op")[producer]
    reads = np.ones(len(edges.node), dtype=np.bool_)
    reads[edges.begin[:-1]] = False
    edge = np.repeat(np.arange(len(producer)), np.diff(edges.begin) - 1)
    node, operand = edges.node[reads], edges.operand[reads]
    slot = np.where(nodes.of_kind(KEPT)[node], HELD, NONE)
    op, place = nodes.of_kind("op")[node], owners_of(problem).place
    names = {name: index for index, name in enumerate(columns.operands)}
    name = np.array([names.get(name, NONE) for name in edges.operands], dtype=np.int64)
    slot[op] = _found((inputs.op, inputs.name), (place[node[op]], name[operand[op]]))
    update = np.flatnonzero(nodes.of_kind("parameter")[node])
    tensor = problem.tensors[edge[update]]
    slot[update] = _found((inputs.op, inputs.tensor), (place[node[update]], tensor))
    return Ends(edge, slot, waits, given)


def _found(rows: tuple[Ints, Ints], wanted: tuple[Ints, Ints]) -> Ints:
    """Return for each wanted pair the first row that is equal; there is one."""
    most = max([int(column.max(initial=0)) for _, column in (rows, wanted)]) + 1
    keys, goals = (first * most + second for first, second in (rows, wanted))
    order = keys.argsort(kind="stable")
    return np.asarray(order[np.searchsorted(keys[order], goals)])


def _moves(problem: Problem, assignment: Sequence[int]) -> Moves:
    """Return what the readers want; of a tensor that waits, both of its edges together."""
    ends, tables = ends_of(problem), problem.edge_columns.table
    made, want = problem.states(assignment)
    origin = ends.edge - ends.waits[ends.edge]  # the edge of the tensor as it is made
    source, held = made[origin], made[ends.edge]
    moved = (ends.slot != HELD) & ((want != held) | (held != source))
    origin, held, want, slot = origin[moved], held[moved], want[moved], ends.slot[moved]
    late = ends.waits[ends.edge[moved]] & (want != held)

    most = int(problem.flat.size.max(initial=1))
    keys = (2 * origin + late) * most + want
    _, begin, item = np.unique(keys, return_index=True, return_inverse=True)
    turn = np.lexsort((begin, late[begin], origin[begin]))
    place = np.empty_like(turn)
    place[turn] = np.arange(len(turn))
    item, begin = place[item], begin[turn]
    edge, goal, late = origin[begin], want[begin], late[begin]
    middle = np.where(late, held[begin], made[edge])
    paths, path, before = _paths(problem, most, np.stack((tables[edge], made[edge], middle, goal)))

    waits = late | (ends.given[edge] & (goal != np.append(made, NONE)[edge + 1]))
    after = np.where(waits, _last_before(problem.program, item, slot, len(edge)), NONE)
    early = np.where(late & (after != NONE), before, 0)
    order = item.argsort(kind="stable")
    return Moves(problem.tensors[edge], paths, path, after, early, slot[order], item[order])


def _paths(problem: Problem, most: int, columns: Table) -> tuple[Sequence[Path], Ints, Ints]:
    """Return distinct paths over a middle, which of them each row has, and the length of its begin."""
    keys = np.zeros(columns.shape[1], dtype=np.int64)
    for column in columns:
        keys = keys * most + column
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    numbers: dict[Path, int] = {}
    found: list[tuple[int, int]] = []
    for table, source, middle, goal in columns[:, first].T.tolist():
        begin, end = (
            _path(problem.edge_columns.tables[table], *pair)
            for pair in ((source, middle), (middle, goal))
        )
        found.append((numbers.setdefault(begin + end, len(numbers)), len(begin)))
    path, before = np.array(found, dtype=np.int64).reshape(-1, 2)[which].T
    return tuple(numbers), path, before


def _path(table: RedistributionTable, source: int, goal: int) -> Path:
    return () if source == goal else table.path(table.states[source], table.states[goal])


def _last_before(program: Program, item: Ints, slot: Ints, count: int) -> Ints:
    """Return for each redistribution the last op that the first of its readers waits for, or NONE."""
    columns, ops = program.columns, len(program.ops)
    last = np.full(ops + 1, NONE)  # the graph's outputs wait for nothing
    np.maximum.at(last, columns.inputs.op, columns.maker[columns.inputs.tensor])
    first = np.full(count, ops)
    np.minimum.at(first, item, np.where(slot == NONE, ops, np.append(columns.inputs.op, ops)[slot]))
    return last[first]


def _names(program: Program, slots: Ints) -> list[Reader]:
    """Return the readers at some slots."""
    inputs, ops, names = program.columns.inputs, program.ops, program.columns.operands
    op, name = (np.append(column, NONE)[slots].tolist() for column in (inputs.op, inputs.name))
    return [
        (OUTPUT, "") if number == NONE else (ops[number].name, names[operand])
        for number, operand in zip(op, name, strict=True)
    ]
