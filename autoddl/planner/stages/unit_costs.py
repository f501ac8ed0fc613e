"""What an assignment takes at each position of the forward pass: the units that pipelines are cut into.

An op counts where it stands (sbp.program.forward_positions), a boxing where the first op stands that
wants it, forward and backward pass together. What a tensor takes that goes from one stage to the next
counts for all places between who makes it and who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.planner.stages.stage_links import Links, Ranks
from autoddl.planner.stages.staged_assignment import ONCE, Spent, Staged
from autoddl.sbp.program.forward_positions import Positions
from autoddl.sbp.rewrites.stage_copies import is_own
from autoddl.sbp.rewrites.tied_sums import tied_sums

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Units(NamedTuple):
    """By unit the seconds of both passes of one micro-batch, and those once per step.

    `waiting_s` are more seconds where others come between its passes: in all stages but the last.
    `held_bytes` are there all the time, `active_bytes` for each micro-batch in flight.
    """

    seconds: Floats
    once_s: Floats
    waiting_s: Floats
    held_bytes: Ints
    active_bytes: Ints


class TensorSpans(NamedTuple):
    """The first and the last place of every tensor, and whether it is made at the first (or the last)."""

    first: Ints
    last: Ints
    on: Flags


class UnitCosts:
    """The costs of an assignment by unit; `whole` is all of it as the only stage of a pipeline."""

    def __init__(self, whole: Staged, found: Positions) -> None:
        self.whole, self.found = whole, found

    def units(self, *, again: bool) -> Units:
        """Return the units; with `again` their forward passes are run twice.

        Else forward results are copied into buffers, but where no other micro-batch comes between.
        """
        spent, waiting, several = self.whole.spent, list[Spent](), self.whole.micro_batches > 1
        if again:
            waiting = [item for item in spent if item.phase == "forward"]
        elif several:
            waiting = list(self.whole.copies())
        held, active = (np.zeros(self.found.count, dtype=np.int64) for _ in range(2))
        for maker, size, kind in self.whole.sizes():
            kept = active if kind == "activation" and not again else held
            twice = kind == "gradient" and several  # of a micro-batch, and of all
            kept[self._place(maker)] += size * (1 + twice)
        return Units(
            self._by_place(item for item in spent if item.phase != ONCE),
            self._by_place(item for item in spent if item.phase == ONCE),
            self._by_place(waiting), held, active,
        )  # fmt: skip

    def _by_place(self, spent: Iterable[Spent]) -> Floats:
        seconds = np.zeros(self.found.count)
        for item in spent:
            seconds[min(map(self._place, item.of))] += item.seconds
        return seconds

    def _place(self, name: str) -> int:
        """Return the position of an op, variable or input; the last one for what the graph returns."""
        held = self.found.held.get(name, self.found.count - 1)
        return self.found.op.get(name, held)

    @cached_property
    def spans(self) -> TensorSpans:
        """Return where tensors are made and read, in the order in which they are made."""
        whole, rows = self.whole, []
        tied = {name for one in tied_sums(whole.program) for name in one.names}
        for tensor in whole.made:
            readers = whole.program.consumers.get(tensor, ())
            names = [op.name for op, _ in readers if op.phase != "optimizer"]
            made = self._place(whole.maker(tensor))
            places = [made, *map(self._place, names)]
            once = whole.goes_once(tensor) or (names and tied.issuperset(names))
            if once or is_own(
                whole.program, whole.program.producer.get(tensor)
            ):  # wherever it is read
                places = [made]
            rows.append((min(places), max(places), made == min(places)))
        first, last, on = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return TensorSpans(first, last, on.astype(bool))

    @cached_property
    def sizes(self) -> Floats:
        """Return the bytes on each device of every tensor as it is made, in the same order."""
        whole = self.whole
        return np.array([whole.local(t, state, 0) for t, state in whole.made.items()], dtype=float)


def crossing_s(
    spans: TensorSpans,
    before: UnitCosts,
    behind: UnitCosts,
    links: Links,
    ends: tuple[Ranks, Ranks],
) -> Floats:
    """Return for every place between units the seconds of what crosses it, both ways.

    `before` are the costs of the assignment that the part before it follows, on the ranks `ends[0]`.
    """
    first, last, on = spans
    seconds = np.where(
        on,
        links.all_seconds(ends[0], ends[1], behind.sizes),
        links.all_seconds(ends[1], ends[0], before.sizes),
    )
    change = np.zeros(before.found.count + 1)
    crosses = first < last
    np.add.at(change, first[crosses], seconds[crosses])
    np.subtract.at(change, last[crosses], seconds[crosses])
    return np.maximum(np.cumsum(change), 0.0)[: before.found.count - 1]
