"""AMP's units in a program of ours: where they begin, and how long their ops take as it was measured.

A unit begins with the first op of its module; one that has none here begins where the next one does. The
times that AMP measured of units are those of all ops in them: an op keeps its share of its unit's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.pipeline_step import COMPUTE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.roofline import OpWork, op_s
from autoddl.planner.stages.staged_assignment import ONCE, Spent, Staged
from autoddl.sbp.program import Program
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.state import broadcast

Floats = npt.NDArray[np.float64]


class PacedStages(Staged):
    """Stages whose ops take so many times as long in a pass, by stage and position, if that is given."""

    def __init__(self, *arguments: Any, paces: Sequence[Floats] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.paces, self.positions = paces, arguments[1]

    @cached_property
    def planned(self) -> list[Spent]:
        """Return what ops and boxings take."""
        return [item._replace(seconds=item.seconds * self._pace(item)) for item in super().planned]

    def _pace(self, item: Spent) -> float:
        place = self.positions.op.get(item.of[0])
        if self.paces is None or place is None or item.stream != COMPUTE or item.phase == ONCE:
            return 1.0
        return float(self.paces[item.stage][place])


def unit_begins(program: Program, modules: Mapping[int, str], units: int) -> list[int]:
    """Return the positions of the forward pass at which units begin, and behind them its end.

    A unit begins with the first op of its module, or of one in that, behind the begin of the one before.

    Raises:
        AutoDDLError: a module has no op there.
    """
    forward = [op.module for op in program.ops if op.phase == "forward"]
    found, place = {0: 0}, 0
    for unit, module in sorted(modules.items()):
        inside = f"{module}."
        while place < len(forward) and not (
            forward[place] == module or (module and forward[place].startswith(inside))
        ):
            place += 1
        if place == len(forward):
            raise AutoDDLError(f"unit {unit}: no op of module {module!r} behind unit {unit - 1}")
        found[unit] = place
        place += 1
    begins = [len(forward)]
    for unit in reversed(range(units)):
        begins.append(found.get(unit, begins[-1]))
    return begins[::-1]


def apart(bounds: Sequence[int], end: int) -> list[int]:
    """Return bounds of stages with an op in each: those without take the next one.

    Of 9 positions cut at 2, 2 and 9 the stages begin at 2, 3 and 8.
    """
    found = list(bounds)
    for place in range(len(found)):
        found[place] = max(found[place], found[place - 1] + 1 if place else 1)
    for place in reversed(range(len(found))):
        found[place] = min(found[place], (found[place + 1] if place + 1 < len(found) else end) - 1)
    return found


def paces(
    sample: Program, begins: Sequence[int], profile: Profile, wanted_s: Floats,
    others: Sequence[int],
) -> Floats:  # fmt: skip
    """Return by position how many times as long ops take as `profile` has it.

    `wanted_s` are the seconds of units for one `sample`, forward and backward, of which some may begin
    where the next one does. The positions are those of another program, in which units begin at `others`.
    """
    starts, taken_s = np.array(begins[:-1]), unit_seconds(sample, begins, profile)
    sums_s = np.zeros(len(starts))
    np.add.at(sums_s, _unit(starts, starts), wanted_s)
    pace = np.divide(sums_s, taken_s, out=np.ones(len(starts)), where=taken_s > 0)
    found: Floats = pace[_unit(np.array(others[:-1]), np.arange(others[-1]))]
    return found


def unit_seconds(sample: Program, begins: Sequence[int], profile: Profile) -> Floats:
    """Return by unit the seconds of its ops for one `sample`, forward and backward."""
    place, starts = positions(sample).op, np.array(begins[:-1])
    taken_s = np.zeros(len(starts))
    for op in sample.ops:
        if op.phase != "optimizer":
            whole = dict.fromkeys(dict(op.operands), broadcast(1))
            seconds = op_s(profile, OpWork.of(sample, op, whole, (1,)))
            taken_s[_unit(starts, place[op.name])] += seconds
    return taken_s


def _unit(begins: Any, places: Any) -> Any:
    """Return the last unit that begins at or before a place."""
    return np.searchsorted(begins, places, side="right") - 1
