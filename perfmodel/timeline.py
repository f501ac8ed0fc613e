"""How the ops and boxings of a step overlap: a simulation of what a device and its links do when.

All devices do the same at the same time, so one stands for all. It runs its ops one after another, in
the order that the layout says, if it does (simulation/list_schedule.py finds one), else in that in
which their inputs arrive, as actors do; boxings that cross a level of the cluster go one after
another over its links. An op and a boxing, or boxings of two levels, run at once; beside a boxing an op
takes longer where Profile.interference says so.

Ops a and b of 3 s each, and a boxing of 2 s over links between a and op c of 1 s: c starts when b ends,
after 6 s, since the boxing is over after 5 s; the step takes 7 s where the sum is 9 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.simulation.event_simulation import Floats, Ints, Works
from autoddl.perfmodel.simulation.list_schedule import ordered
from autoddl.perfmodel.simulation.step_graph import BoxingParts, OpWaits, StepMoves, step_works
from autoddl.perfmodel.step_cost import Price, StepPrices, Totals
from autoddl.ragged import Ragged, inverse
from autoddl.sbp.layout import NONE, Layout
from autoddl.sbp.lazy import LazyTuple

# Relative. With it 7 of 10 plans took what was predicted ± uncertainty on testbeds of four ranks
# (experiments.fidelity).
MODEL_ERROR = 0.07


@dataclass(frozen=True)
class Prediction:
    """What a step costs, and its seconds when ops and boxings overlap."""

    cost: Totals
    step_s: float

    @property
    def overlap_s(self) -> float:
        """Return the seconds in which ops and boxings go on at once."""
        seconds = self.cost.step_s - self.step_s
        return seconds if seconds > 1e-9 * self.step_s else 0.0  # else it is rounding

    @property
    def uncertainty_s(self) -> float:
        """Return by how much `step_s` may be off: what the fits miss and what the model does."""
        return math.hypot(self.cost.uncertainty_s, MODEL_ERROR * self.step_s)


class StepTimeline:
    """The works of a step: the ops in their order, then the boxings by when their tensors are made.

    A tensor's boxings start when it has been made, one behind the other; its readers wait for the last.
    A parameter's update waits for those that read it. Where nothing `overlaps`, since boxings are ops of
    the compute stream, they are the device's work. If it `orders`, ops go in a better order than that in
    which they are ready, where one is found and no boxing waits for an op; else as the layout says.
    """

    def __init__(
        self, prices: StepPrices, layout: Layout, *, overlaps: bool = True, orders: bool = False
    ) -> None:
        self.mesh, self.profile = prices.mesh, prices.profile
        self.layout, self.program, moves = layout, layout.program, layout.moves
        self.overlaps = overlaps
        self.orders = orders and overlaps and not (moves.after != NONE).any()
        self.cost = cost = prices.step(layout)
        columns = self.program.columns
        maker, output = columns.maker[moves.tensor], columns.output[moves.tensor]
        _, first, tensor = np.unique(moves.tensor, return_index=True, return_inverse=True)
        order = np.lexsort((first[tensor], output, maker))
        self.maker, self.tensor = maker[order], moves.tensor[order]
        self.move = inverse(order)[moves.item]  # of each reader of a moved tensor
        begin = np.append(0, moves.lengths.cumsum())
        self.boxing = Ragged(begin, cost.boxings.which).take(order)
        self.compute_s = np.array([p.seconds for p in cost.ops.prices])[cost.ops.which]
        self.prices = prices

    @cached_property
    def prediction(self) -> Prediction:
        """Return what the step costs, and takes."""
        totals = self.cost.totals
        if not self.overlaps:
            return Prediction(totals, totals.step_s)
        if self.works.launched is not None:
            boxings_s = self.works.graph.work_s[self._place[len(self.compute_s) :]]
            totals = totals._replace(communication_s=float(boxings_s.sum()))
        return Prediction(totals, self.works.end_s)

    def _parts(self, parts_of: Callable[[Price], ResourceParts]) -> list[ResourceParts]:
        """Return the parts of each kind of boxing; where nothing overlaps they are the device's."""
        kinds = self.cost.boxings.prices
        if not self.overlaps:
            return [((DEVICE, price.seconds),) for price in kinds]
        return list(map(parts_of, kinds))

    @property
    def least_parts(self) -> list[ResourceParts]:
        """Return by kind of boxing what it takes of its resources at least (BoxingPrices)."""
        return self._parts(self.prices.least_parts)

    @property
    def _boxing_s(self) -> Floats:
        parts = self._parts(self.prices.parts)
        return np.array([sum(s for _, s in each) for each in parts])[self.boxing.items]

    @cached_property
    def slot_s(self) -> Floats:
        """Return the seconds of the boxings before each input of all ops."""
        of_move = np.bincount(self.boxing.row, self._boxing_s, len(self.tensor))
        slot, found = self.layout.moves.slot, np.zeros(len(self.program.columns.inputs.tensor))
        found[slot[slot >= 0]] = of_move[self.move[slot >= 0]]
        return found

    @property
    def works(self) -> Works:
        """Return all works in the order of the program, a boxing behind the op that makes its tensor."""
        return self._better or self._as_told

    @property
    def after(self) -> Mapping[str, str]:
        """Return which op each other one waits for without reading from it."""
        return self.layout.after if self._better is None else self._chain

    @cached_property
    def _better(self) -> Works | None:
        """Return the works with their ops in a better order, if there is one."""
        return ordered(self._as_told, self._place[self._busy]) if self.orders else None

    @property
    def _busy(self) -> Ints:
        """Return the ops that take time."""
        return np.flatnonzero(self.compute_s > 0)

    @cached_property
    def _chain(self) -> dict[str, str]:
        """Return which op each goes behind."""
        ended = self.works.plain.ended[self._place[self._busy]]
        names = [self.program.ops[op].name for op in self._busy[ended.argsort()].tolist()]
        return dict(zip(names[1:], names[:-1], strict=True))

    @property
    def _as_told(self) -> Works:
        """Return the works, with ops in the order of the layout."""
        return self._told[0]

    @property
    def _place(self) -> Ints:
        """Return the number of the work that each op is, and then each boxing."""
        return self._told[1]

    @cached_property
    def _told(self) -> tuple[Works, Ints]:
        moves, columns = self.layout.moves, self.program.columns
        waits, after = OpWaits.of(self.program), self.layout.after
        late, early = ([*map(columns.place.__getitem__, ops)] for ops in (after, after.values()))
        waits = waits._replace(
            first=np.append(waits.first, np.array(early, dtype=np.int64)),
            then=np.append(waits.then, np.array(late, dtype=np.int64)),
        )
        before = np.full(len(columns.inputs.tensor), NONE)
        before[moves.slot[moves.slot != NONE]] = self.move[moves.slot != NONE]
        steps = StepMoves(self.maker, self.boxing.start, self.boxing.items, before)
        kinds, slow = self.cost.boxings.prices, self.profile.interference
        parts = (
            self.prices.boxing_parts(kinds)
            if self.overlaps
            else BoxingParts.of(self._parts(self.prices.parts))
        )
        works, place = step_works(waits, self.compute_s, steps, parts, slow)
        return replace(works, names=LazyTuple(partial(self._names, place))), place

    def _names(self, place: Ints) -> tuple[str, ...]:
        """Return what the works are called: ops, and the tensors that are moved."""
        names = [op.name for op in self.program.ops]
        names += [self.program.tensors[self.tensor[m]].name for m in self.boxing.row.tolist()]
        return tuple([names[work] for work in inverse(place).tolist()])

    def waited_for(self) -> tuple[Floats, Floats]:
        """Return which share of each op's seconds is on the critical path, and of each tensor's boxings.

        It is NaN for tensors that are not moved.
        """
        (ops_s, boxings_s), tensor = self.critical_s(), self.tensor[self.boxing.row]
        count = len(self.program.tensors)
        on = np.bincount(tensor, boxings_s, count)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = ops_s / self.compute_s, on / np.bincount(tensor, self._boxing_s, count)
        return np.nan_to_num(shares[0], posinf=0.0), shares[1]

    def critical_s(self) -> tuple[Floats, Floats]:
        """Return the seconds of each op on the critical path, and of each boxing; they add up to its end.

        Boxing b is of kind `boxing.items[b]`, and of tensor `tensor[boxing.row[b]]`.
        """
        found, ops = self.works.critical_s()[self._place], len(self.compute_s)
        return found[:ops], found[ops:]
