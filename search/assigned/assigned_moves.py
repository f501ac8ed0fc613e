"""Which readers of an assignment want a tensor in another state, and when it comes to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.ragged import distinct, inverse
from autoddl.sbp.layout import NONE, Moves, Path
from autoddl.sbp.program import Program
from autoddl.sbp.program.columns import Flags, Ints
from autoddl.search.assigned.ownership import owners
from autoddl.search.network.cost_network import SAVED, CostNetwork

HELD = -2  # in place of a slot: nobody reads the tensor there, it waits


class ReaderSlots(NamedTuple):
    """Who reads the tensors of a problem: of each reader, edge by edge, the edge and the `slot`.

    That is its place among the inputs of all ops; NONE for what the graph returns, HELD where the
    tensor waits. By edge, `waits` tells whether its tensor has waited, and comes behind the edge of the
    same tensor as it was made; `given` which are those of tensors that no op makes.
    """

    edge: Ints
    slot: Ints
    waits: Flags
    given: Flags


def reader_slots(problem: CostNetwork) -> ReaderSlots:
    """Return who reads the tensors of a problem."""
    nodes, edges, columns = problem.variables, problem.factors, problem.program.columns
    inputs = columns.inputs
    producer, reads = edges.producer, edges.reads
    waits = nodes.of_kind(SAVED)[producer]
    given = np.append(waits[1:], False)[: len(waits)] & ~nodes.of_kind("op")[producer]
    edge, node, operand = edges.factor[reads], edges.variable[reads], edges.operand[reads]
    slot = np.where(nodes.of_kind(SAVED)[node], HELD, NONE)
    op, place = nodes.of_kind("op")[node], problem.derived(owners).place
    names = {name: index for index, name in enumerate(columns.operands)}
    name = np.array([names.get(name, NONE) for name in edges.operands], dtype=np.int64)
    slot[op] = _found((inputs.op, inputs.name), (place[node[op]], name[operand[op]]))
    update = np.flatnonzero(nodes.of_kind("parameter")[node])
    tensor = problem.factors.tensor[edge[update]]
    slot[update] = _found((inputs.op, inputs.tensor), (place[node[update]], tensor))
    return ReaderSlots(edge, slot, waits, given)


def _found(rows: tuple[Ints, Ints], wanted: tuple[Ints, Ints]) -> Ints:
    """Return for each wanted pair the first row that is equal; there is one."""
    most = max([int(column.max(initial=0)) for _, column in (rows, wanted)]) + 1
    keys, goals = (first * most + second for first, second in (rows, wanted))
    order = keys.argsort(kind="stable")
    return np.asarray(order[np.searchsorted(keys[order], goals)])


def moves_of(problem: CostNetwork, assignment: Sequence[int]) -> Moves:
    """Return what readers want in another state, edge by edge.

    Of a tensor that waits for the backward pass (saved_tensors.py) the boxings of that pass come just
    before they are read, and those of the forward pass, too, if nothing in it makes the tensor. A
    parameter or input is in memory all the time: no reader takes it from the state in which it waits.
    """
    ends, tables = problem.derived(reader_slots), problem.factors.table
    made, want = problem.states(assignment)
    origin = ends.edge - ends.waits[ends.edge]  # the edge of the tensor as it is made
    source, held = made[origin], made[ends.edge]
    given = ends.given[origin]
    other = np.where(given, want != source, (want != held) | (held != source))
    moved = (ends.slot != HELD) & other
    origin, held, want, slot = origin[moved], held[moved], want[moved], ends.slot[moved]
    late = ends.waits[ends.edge[moved]] & (want != held)

    begin, item = distinct(origin, late, want)
    turn = np.lexsort((begin, late[begin], origin[begin]))
    item, begin = inverse(turn)[item], begin[turn]
    edge, goal, late = origin[begin], want[begin], late[begin]
    middle = np.where(late & ~ends.given[edge], held[begin], made[edge])
    paths, path, before = _paths(problem, np.stack((tables[edge], made[edge], middle, goal)))

    waits = late | (ends.given[edge] & (goal != np.append(made, NONE)[edge + 1]))
    after = np.where(waits, _last_before(problem.program, item, slot, len(edge)), NONE)
    early = np.where(late & (after != NONE), before, 0)
    order = item.argsort(kind="stable")
    return Moves(problem.factors.tensor[edge], paths, path, after, early, slot[order], item[order])


def _paths(problem: CostNetwork, columns: Ints) -> tuple[Sequence[Path], Ints, Ints]:
    """Return distinct paths over a middle, which of them each row has, and the length of its begin."""
    first, which = distinct(*columns)
    numbers: dict[Path, int] = {}
    found: list[tuple[int, int]] = []
    for number, *states in columns[:, first].T.tolist():
        table = problem.factors.tables[number]
        source, middle, goal = (table.states[state] for state in states)
        begin, end = table.path(source, middle), table.path(middle, goal)
        found.append((numbers.setdefault(begin + end, len(numbers)), len(begin)))
    path, before = np.array(found, dtype=np.int64).reshape(-1, 2)[which].T
    return tuple(numbers), path, before


def _last_before(program: Program, item: Ints, slot: Ints, count: int) -> Ints:
    """Return for each redistribution the last op that the first of its readers waits for, or NONE."""
    columns, ops = program.columns, len(program.ops)
    last = np.full(ops + 1, NONE)  # the graph's outputs wait for nothing
    np.maximum.at(last, columns.inputs.op, columns.maker[columns.inputs.tensor])
    first = np.full(count, ops)
    np.minimum.at(first, item, np.where(slot == NONE, ops, np.append(columns.inputs.op, ops)[slot]))
    return np.asarray(last[first])
