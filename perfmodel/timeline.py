"""How the ops and boxings of a step overlap: a simulation of what a device and its links do when.

All devices do the same at the same time, so one stands for all. It runs its ops one after another, in
the order that the layout says, if it does (list_schedule.py finds one), else in that in which their
inputs arrive, as OneFlow's actors do; boxings that cross a level of the cluster go one after another
over its links. An op and a boxing, or boxings of two levels, run at once; beside a boxing an op takes
longer where Profile.interference says so.

Ops a and b of 3 s each, and a boxing of 2 s over links between a and op c of 1 s: c starts when b ends,
after 6 s, since the boxing is over after 5 s; the step takes 7 s where the sum is 9 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoddl.grouping import inverse
from autoddl.perfmodel.event_simulation import Floats, Ints, Works, by_number, earliest_ends
from autoddl.perfmodel.list_schedule import ordered
from autoddl.perfmodel.oneflow.task_graph import Flags
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.resources import DEVICE, ResourceParts
from autoddl.perfmodel.step_cost import Price, StepPrices, Totals
from autoddl.ragged import Ragged
from autoddl.sbp.layout import NONE, Layout
from autoddl.sbp.mesh import Mesh

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


def predict(mesh: Mesh, profile: Profile, layout: Layout) -> Prediction:
    """Return what a step takes in which ops and boxings overlap as Profile.overlap says.

    Raises:
        AutoDDLError: as StepPrices.step.
    """
    return StepTimeline(StepPrices(layout.program, mesh, profile), layout).prediction


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
        self.parts = [self._parts_of(price) for price in cost.boxings.prices]

    @cached_property
    def prediction(self) -> Prediction:
        """Return what the step costs, and takes."""
        totals = self.cost.totals
        return Prediction(totals, self.works.end_s if self.overlaps else totals.step_s)

    def _parts_of(self, price: Price) -> ResourceParts:
        """Return on which resources a boxing runs for how long."""
        axes = price.boxing.axes if price.boxing is not None and self.overlaps else ()
        level = self.mesh.axes[axes[0]].level if axes else None
        return self.profile.parts(level, price.seconds)

    def busy_s(self, ops: Flags, makers: Flags) -> dict[str, float]:
        """Return for how long some ops, and the boxings behind some, keep each resource busy.

        The last of the makers stands for none.
        """
        found = {DEVICE: float(self.compute_s[ops].sum())}
        mine = self.boxing.items[makers[self.maker[self.boxing.row]]]
        count = np.bincount(mine, minlength=len(self.parts)).tolist()
        for parts, times in zip(self.parts, count, strict=True):
            for resource, seconds in parts:
                found[resource] = found.get(resource, 0.0) + seconds * times
        return found

    @property
    def _boxing_s(self) -> Floats:
        return np.array([sum(s for _, s in parts) for parts in self.parts])[self.boxing.items]

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
        return ordered(self._as_told, self._busy) if self.orders else None

    @property
    def _busy(self) -> Ints:
        """Return the works that are ops and take time."""
        return inverse(self._order)[np.flatnonzero(self.compute_s > 0)]

    @cached_property
    def _chain(self) -> dict[str, str]:
        """Return which op each goes behind."""
        works = self.works
        ended = works.plain.ended[self._busy]
        names = [works.names[work] for work in self._busy[ended.argsort()].tolist()]
        return dict(zip(names[1:], names[:-1], strict=True))

    @cached_property
    def _as_told(self) -> Works:
        """Return the works, with ops in the order of the layout."""
        columns, inputs = self.program.columns, self.program.columns.inputs
        ops, start = len(self.compute_s), self.boxing.start
        boxings = ops + np.arange(start[-1])
        moved = np.diff(start) > 0  # a path may have no boxing
        last = np.where(moved, ops - 1 + start[1:], self.maker)  # of the boxings of each move
        before = boxings - 1  # what each of them waits for
        before[start[:-1][moved]] = self.maker[moved]
        slot, source = self.layout.moves.slot, columns.maker[inputs.tensor]
        source[slot[slot >= 0]] = last[self.move[slot >= 0]]
        order = self._order
        place = inverse(order)
        late, early = np.array(
            [(columns.place[op], columns.place[other]) for op, other in self.layout.after.items()],
            dtype=np.int64,
        ).reshape(-1, 2).T  # fmt: skip
        readers, updates = self.program.precedence
        first = np.concatenate((source, before, early, readers))
        then = np.concatenate((inputs.op, boxings, late, updates))
        first, then = place[first[first >= 0]], place[then[first >= 0]]
        first, then = np.divmod(np.unique(first * len(order) + then), max(len(order), 1))
        tensors = [self.program.tensors[n].name for n in self.tensor.tolist()]
        names = [op.name for op in self.program.ops]
        names += [tensors[move] for move in self.boxing.row.tolist()]
        names = [names[work] for work in order.tolist()]
        return Works.of(names, *self._parts(order), first, then, slow=self.profile.interference)

    @cached_property
    def _order(self) -> Ints:
        """Return the works in their order: the number of an op, or that of a boxing behind all ops."""
        behind = np.concatenate((np.arange(len(self.compute_s)), self.maker[self.boxing.row]))
        return np.argsort(behind, kind="stable")

    def waited_for(self) -> tuple[Floats, Floats]:
        """Return which share of each op's seconds is on the critical path, and of each tensor's boxings.

        It is NaN for tensors that are not moved.
        """
        critical_s = self.works.critical_s()[inverse(self._order)]
        ops, tensor = len(self.compute_s), self.tensor[self.boxing.row]
        count = len(self.program.tensors)
        on = np.bincount(tensor, critical_s[ops:], count)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = (
                critical_s[:ops] / self.compute_s,
                on / np.bincount(tensor, self._boxing_s, count),
            )
        return np.nan_to_num(shares[0], posinf=0.0), shares[1]

    def _parts(self, order: Ints) -> tuple[list[str], Ragged, Floats]:
        """Return the resources, and of the parts of works in this order the resource and seconds."""
        resources, resource, seconds = by_number([((DEVICE, 0.0),), *self.parts])
        mine = Ragged(resource.start, np.arange(len(seconds))).take(1 + self.boxing.items)
        busy = self.compute_s > 0
        begin = np.append(0, busy.cumsum())
        start = np.concatenate((begin, begin[-1] + mine.start[1:]))
        found = Ragged(start, np.arange(start[-1])).take(order)
        device = np.zeros(begin[-1], dtype=np.int64)
        on = np.concatenate((device, resource.items[mine.items]))
        took = np.concatenate((self.compute_s[busy], seconds[mine.items]))
        return resources, Ragged(found.start, on[found.items]), took[found.items]

    @cached_property
    def least_s(self) -> float:
        """Return seconds that the simulated step does not go below.

        A resource is busy from the first time on at which the maker of some tensor that it moves has
        ended. An op ends after those that it waits for, whatever moves between them. Boxings beside it
        only make it longer.
        """
        before = Ragged.sorted(*self.program.columns.waits, len(self.compute_s))
        ended = np.append(earliest_ends(self.compute_s, *before), 0.0)  # the last: there at once
        begins = np.full(len(self.parts), np.inf)
        np.minimum.at(
            begins, self.boxing.items, ended[self.maker].repeat(np.diff(self.boxing.start))
        )
        busy, first = {DEVICE: sum(self.compute_s.tolist())}, {DEVICE: 0.0}
        count = np.bincount(self.boxing.items, minlength=len(self.parts)).tolist()
        for parts, times, begin_s in zip(self.parts, count, begins.tolist(), strict=True):
            for resource, seconds in parts:
                busy[resource] = busy.get(resource, 0.0) + seconds * times
                first[resource] = min(first.get(resource, math.inf), begin_s)
        least_s = max([first[r] + seconds for r, seconds in busy.items()])
        return float(least_s) * (1 - 1e-9)
