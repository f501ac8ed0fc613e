"""The seconds of the steps of many assignments of one network: from the choices to the end, compiled.

The same simulation as perfmodel.timeline makes of a layout, without the layout: most of the time there
goes into naming states, and finding prices by them. Here both are numbers: the path from one state to
another is told by the cell of the factor's cost table. What boxings it has, and what these take, is
looked up when an assignment first uses it. A step of 640 ops is told in 0.6 ms instead of 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoddl.compiled import compiled
from autoddl.perfmodel.simulation.list_schedule import ordered
from autoddl.perfmodel.simulation.step_graph import OpWaits, StepMoves, step_works
from autoddl.perfmodel.step_cost import Price
from autoddl.ragged import Ragged
from autoddl.sbp.program.ops_and_tensors import AGAIN
from autoddl.sbp.rewrites.recomputation import PREFIX
from autoddl.search.assigned.assigned_moves import reader_slots
from autoddl.search.network.cost_network import CostNetwork, Ints, as_ints
from autoddl.search.result import Point


class FactorReaders(NamedTuple):
    """Factors in the order of a step: that of their makers, -1 for none.

    `first` is the end of each one's producer, behind which its readers stand up to `last`. A factor's
    path from state s to t is in the cell `table_at + s * size + t`. By end, `variable` is who; its state
    under choice c is `states[states_at + c]`; `slot` is the input of all ops by which it reads, or -1.
    """

    maker: Ints
    first: Ints
    last: Ints
    table_at: Ints
    size: Ints
    variable: Ints
    states_at: Ints
    states: Ints
    slot: Ints


class BoxingPaths(NamedTuple):
    """Known paths: that in a cell is `number[cell]`, -1 if it is not known yet.

    Path p has boxings of the kinds `kind[begin[p] : begin[p + 1]]`.
    """

    number: Ints
    begin: Ints
    kind: Ints


class SimulatedSteps:
    """The simulated steps of a network's assignments, in which ops and boxings overlap.

    None of its tensors waits for the backward pass (saved_tensors.py).
    """

    def __init__(self, network: CostNetwork) -> None:
        self.network = network
        program, net, factors = network.program, network.arrays, network.factors
        maker, output = (
            of[factors.tensor] for of in (program.columns.maker, program.columns.output)
        )
        self._factors = order = np.lexsort((output, maker))
        slot = np.full(len(net.variable), -1)
        slot[factors.reads] = np.maximum(network.derived(reader_slots).slot, -1)
        self._readers = FactorReaders(
            maker[order], net.begin[:-1][order], net.begin[1:][order], net.table_at[order],
            net.size[order], net.variable, net.states_at, net.states, slot,
        )  # fmt: skip
        self._waits, self._orders = OpWaits.of(program), network.derived(may_be_ordered)
        self._number = np.full(len(net.cost), -1)  # of the path in each cell
        self._rows: list[list[int]] = []  # by path the kinds of its boxings
        self._kinds: dict[Price, int] = {}
        self._know([])

    def step_s(self, point: Point) -> float:
        """Return the seconds of a step under an assignment.

        Raises:
            AutoDDLError: no boxing leads from one of its states to another.
        """
        now, net, slots = as_ints(point), self.network.arrays, len(self._waits.op)
        *moves, unknown = step_moves(self._readers, self._paths, now, slots)
        if len(unknown):
            self._know(unknown.tolist())
            *moves, _ = step_moves(self._readers, self._paths, now, slots)
        compute_s = np.zeros(len(self.network.program.ops) + 1)  # the last: of what is no op
        compute_s[self.network.timed_ops] = net.compute[net.compute_at + now]
        works, place = step_works(
            self._waits, compute_s[:-1], StepMoves(*moves), self._parts,
            self.network.profile.interference,
        )  # fmt: skip
        better = ordered(works, place[np.flatnonzero(compute_s[:-1])]) if self._orders else None
        return (better or works).end_s

    def _know(self, unknown: Sequence[tuple[int, int]]) -> None:
        """Look up the paths in some cells, each with the place of a factor of that table."""
        network, net, factors = self.network, self.network.arrays, self.network.factors
        for place, cell in unknown:
            factor = self._factors[place]
            table, name = (
                factors.tables[factors.table[factor]],
                network.program.tensors[factors.tensor[factor]].name,
            )
            states = divmod(cell - int(net.table_at[factor]), int(net.size[factor]))
            source, goal = (table.states[state] for state in states)
            path = network.setting.prices.path(name, source, table.path(source, goal))
            self._number[cell] = len(self._rows)
            self._rows.append([self._kinds.setdefault(p, len(self._kinds)) for p in path])
        self._paths = BoxingPaths(self._number, *Ragged.of(self._rows))
        self._parts = network.setting.prices.boxing_parts(list(self._kinds))


def may_be_ordered(network: CostNetwork) -> bool:
    """Tell whether ops may go in another order; what is computed again has one already."""
    return not any(op.name.startswith((PREFIX, AGAIN)) for op in network.program.ops)


@compiled
def step_moves(
    readers: FactorReaders, paths: BoxingPaths, point: Ints, slots: int
) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the fields of a StepMoves, and what is not known: places of factors, cells of their tables.

    With what is not known, the boxings are not all.
    """
    ends = len(readers.variable)
    maker, path = np.empty(ends, np.int64), np.empty(ends, np.int64)
    begin, before = np.zeros(ends + 1, np.int64), np.full(slots, -1)
    unknown = np.empty((ends, 2), np.int64)
    most = 1
    for size in readers.size:
        most = max(most, size)
    move_of, moves, missing = np.full(most, -1), 0, 0
    for place in range(len(readers.maker)):
        first, known = readers.first[place], moves
        source = readers.states[readers.states_at[first] + point[readers.variable[first]]]
        row = readers.table_at[place] + source * readers.size[place]
        for end in range(first + 1, readers.last[place]):
            state = readers.states[readers.states_at[end] + point[readers.variable[end]]]
            if state == source:
                continue
            move = move_of[state]
            if move < known:  # that of another factor
                move_of[state] = move = moves
                maker[move], number = readers.maker[place], paths.number[row + state]
                path[move], begin[move + 1] = number, begin[move]
                if number >= 0:
                    begin[move + 1] += paths.begin[number + 1] - paths.begin[number]
                else:
                    unknown[missing, 0], unknown[missing, 1] = place, row + state
                    missing += 1
                moves += 1
            if readers.slot[end] >= 0:
                before[readers.slot[end]] = move
    kind, boxing = np.empty(begin[moves], np.int64), 0
    for number in path[:moves]:
        for k in range(paths.begin[max(number, 0)], paths.begin[number + 1]):  # none of path -1
            kind[boxing] = paths.kind[k]
            boxing += 1
    return maker[:moves], begin[: moves + 1], kind, before, unknown[:missing]
