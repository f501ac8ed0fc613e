"""Pins of stages, {"model.blocks.3": "stage 1"}: between which positions each stage may begin.

A pipeline is cut at positions of the forward pass. An op at position 5 that is pinned to stage 1 wants

    stage 1 to begin at 5 or before, stage 2 behind 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import Positions, positions
from autoddl.search.network.pins import matched, told


class _Pinned(NamedTuple):
    """What stands at a position, and the stage that it is pinned to."""

    position: int
    stage: int
    name: str
    pin: str


def stage_of(text: str) -> int | None:
    """Return the stage that a pin's text asks for, None where it is about states."""
    found = re.fullmatch(r"\s*stage\s+(\d{1,6})\s*", text)
    return int(found[1]) if found else None


class StagePins:
    """The pins of stages of a program.

    Raises:
        AutoDDLError: a pin matches nothing, or two contradict each other or the order of the program.
    """

    def __init__(self, program: Program, pin: Mapping[str, str], *, free: bool = False) -> None:
        """Read pins; where stages are `free` what no data goes between may be in any order."""
        self.program, self.pin = program, {p: t for p, t in pin.items() if stage_of(t) is not None}
        for one, other in pairwise(self.pinned):
            if one.position == other.position and one.stage != other.stage:
                raise AutoDDLError(
                    f"{one.pin} and {other.pin}: contradict each other, both are for "
                    f"{shown(one.name, 60)}; leave one of them out"
                )
        for one, other in combinations(self.pinned, 2) if free else pairwise(self.pinned):
            if one.stage > other.stage and (order := self._order(one, other, free=free)):
                raise AutoDDLError(
                    f"{one.pin} and {other.pin}: {order}, and goes to later stages only; change one of "
                    "them"
                )

    def __bool__(self) -> bool:
        return bool(self.pin)

    @cached_property
    def pinned(self) -> Sequence[_Pinned]:
        """Return what is pinned, in the order of positions."""
        found = positions(self.program) if self.pin else None
        every: list[_Pinned] = []
        for pattern, text in self.pin.items():
            for one in matched(self.program, pattern):
                names = [op.name for op in one.ops]
                assert found is not None
                places = [found.op[n] for n in names] or [found.held[one.tensor]]
                for name, place in zip(names or [one.name], places, strict=True):
                    every.append(_Pinned(place, stage_of(text) or 0, name, told(pattern, text)))
        return sorted(every)

    def begins(self, stages: int, places: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """Return by stage and place whether it may begin there; None where so many stages can't.

        The last of the `places` is the end of the program, where none begins.
        """
        at = np.array(places)
        allowed = np.ones((stages, len(at)), dtype=np.bool_)
        if any(one.stage >= stages for one in self.pinned):
            return None
        for one in self.pinned:
            allowed[: one.stage + 1] &= at <= one.position
            allowed[one.stage + 1 :] &= at > one.position
        last = 0
        for row in allowed[1:, :-1]:
            free = np.flatnonzero(row[last + 1 :])
            if not len(free):
                return None
            last += 1 + int(free[0])
        return allowed

    def check(
        self, numbers: Sequence[int], places: Sequence[int], *, free: bool = False
    ) -> list[int]:
        """Return which numbers of stages can be, of `free` stages those that are enough.

        Raises:
            AutoDDLError: none; says which pin is in the way.
        """
        last = max([one.stage for one in self.pinned], default=0)
        if free and last < max(numbers, default=0):
            return [number for number in numbers if number > last]
        found = [number for number in numbers if self.begins(number, places) is not None]
        if found or not self.pinned:
            return found or list(numbers)
        most = max(numbers, default=0)
        if last >= most:
            pin = next(one.pin for one in self.pinned if one.stage == last)
            raise AutoDDLError(
                f"{pin}: a pipeline of {most} stages has none of this number, from 0 on; pin it to "
                "an earlier one, or plan more stages"
            )
        pins = " and ".join(dict.fromkeys(one.pin for one in self.pinned))
        raise AutoDDLError(
            f"{pins}: between what is pinned there are too few places to cut for {most} stages; pin "
            "other modules"
        )

    def nodes(self, found: Positions) -> Iterator[tuple[int, int]]:
        """Yield the positions of what is pinned, of other positions than the program's, and stages."""
        for one in self.pinned:
            yield {**found.held, **found.op}[one.name], one.stage

    def _order(self, one: _Pinned, other: _Pinned, *, free: bool) -> str:
        """Return why one comes before the other: the path of the data, or the order of the program.

        The latter is none where stages are free.
        """
        names = list(self._path(one.name, other.name))
        if not names and free and one.position < other.position:
            return ""
        if not names:
            return f"{shown(one.name, 60)} comes before {shown(other.name, 60)} in the program"
        told = names if len(names) <= 4 else [*names[:2], "…", *names[-2:]]
        return f"data goes {' → '.join(told)}"

    def _path(self, begin: str, end: str) -> Iterator[str]:
        """Yield the ops on a shortest path of the data from one to the other, none if there is none."""
        program, before = self.program, {begin: ""}
        waiting = [begin]
        for name in waiting:  # grows while it is read
            made = [t for _, t in program.op[name].outputs] if name in program.op else [name]
            for reader in (
                op.name for tensor in made for op, _ in program.consumers.get(tensor, ())
            ):
                if reader not in before:
                    before[reader] = name
                    waiting.append(reader)
        path = [end] if end in before else []
        while path and before[path[-1]]:
            path.append(before[path[-1]])
        yield from reversed(path)
