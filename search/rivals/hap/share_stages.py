"""The stages of a planned program as lines in the shares, for HAP's linear program.

Ops come in the order of the program, each behind the boxings of what it reads. A collective ends the
stage before it. An op is a line through what it takes for one unit of the cut and for all: exact where
the same side of its roofline holds. Gathers and scatters pad, so theirs is a line in the largest share, as
is that of a local slice; an all-reduce is constant. An all-to-all, of which j sends B_j (1 − B_j), is no
line and taken as constant, at what it takes under the shares of the mesh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autoddl.perfmodel.boxing_prices import BoxingPrices
from autoddl.perfmodel.profile_entries import Device
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.boxing import ALL_REDUCE, ALL_TO_ALL, LOCAL, Boxing, boxing
from autoddl.sbp.layout import OUTPUT, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shares import Portion, most, units
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.network.cost_network import CostNetwork, Floats
from autoddl.search.result import Point
from autoddl.search.rivals.hap.shares_lp import SharedStage


def stages_of(
    problem: CostNetwork, assignment: Point, devices: Sequence[Device]
) -> tuple[SharedStage, ...]:
    """Return the stages of an assignment on a mesh of one axis; `devices` are those of its places."""
    layout, program = assigned_layout(problem, assignment), problem.program
    place = {**program.columns.place, OUTPUT: len(program.ops)}
    arriving: dict[str, list[Redistribution]] = defaultdict(list)
    for move in layout.redistributions:
        arriving[min((name for name, _ in move.readers), key=place.__getitem__)].append(move)
    lines, drafts = _Lines(problem, devices), [_Draft(np.zeros((2, len(devices))))]
    for name in (*(op.name for op in program.ops), OUTPUT):
        for move in arriving[name]:
            for step, after_cuts in _boxings(problem, layout.made[move.tensor], move):
                item_bytes = program.tensor[move.tensor].item_bytes
                fixed_s, padded_s = lines.boxing(step, item_bytes, after_cuts)
                if step.primitive != LOCAL and drafts[-1].computes:
                    drafts.append(_Draft(np.zeros((2, len(devices)))))
                drafts[-1].fixed_s += fixed_s
                drafts[-1].padded_s += padded_s
        if name != OUTPUT:
            drafts[-1].computes = True
            drafts[-1].seconds += lines.op(program.op[name], layout.signatures[name])
    return tuple(draft.stage for draft in drafts)


@dataclass
class _Draft:
    """A stage that grows: `seconds` are the constants of the devices, and those of whole shares."""

    seconds: Floats
    padded_s: float = 0.0
    fixed_s: float = 0.0
    computes: bool = False

    @property
    def stage(self) -> SharedStage:
        constant, share = (tuple(row.tolist()) for row in self.seconds)
        return SharedStage(constant, share, self.padded_s, self.fixed_s)


class _Lines:
    """What ops and boxings take, as lines; those of ops that are alike are found once."""

    def __init__(self, problem: CostNetwork, devices: Sequence[Device]) -> None:
        self.problem, self.devices = problem, devices
        (axis,), (self.cut,) = problem.mesh.axes, problem.mesh.cuts
        even = Mesh((replace(axis, shares=()),))
        self.size = axis.size
        self.now = problem.setting.redistributor.boxings
        self.even = BoxingPrices(even, problem.profile, self.now.queue)
        self.known: dict[object, Floats] = {}

    def op(self, op: Op, signature: NdSignature) -> Floats:
        """Return the seconds of an op: the constant of each device, then what its share multiplies."""
        program = self.problem.program
        kind = int(program.columns.kind[program.columns.place[op.name]])
        key = kind, tuple([signature[operand] for operand, _ in op.operands])
        if key not in self.known:
            one = Portion(1, units(self.cut), self.size)
            works = [OpWork.of(program, op, signature, (cut,)) for cut in (one, 1)]
            rows = [
                _line(lambda b, d=device: device_s(d, works[b]), 1 / units(self.cut))
                for device in self.devices
            ]
            self.known[key] = np.array(rows).T
        return self.known[key]

    def boxing(self, step: Boxing, item_bytes: int, after_cuts: bool) -> tuple[float, float]:
        """Return the seconds of a boxing that do not depend on shares, and those of max B."""
        whole = step.elements
        if step.primitive == LOCAL:
            whole = whole * units(self.cut) // most(self.cut)
        else:
            whole *= self.size  # of an even cut, which moves as much as if one share were all
        alike = step.primitive in (ALL_REDUCE, ALL_TO_ALL)
        if alike or (step.primitive == LOCAL and not after_cuts):
            return self.now.step_s(step, item_bytes), 0.0
        sizes = [replace(step, elements=n) for n in (whole // self.size, whole)]
        return _line(lambda which: self.even.step_s(sizes[which], item_bytes), 1 / self.size)


def _line(seconds: Callable[[int], float], least: float) -> tuple[float, float]:
    """Return constant and slope through what the share `least` takes, and all: seconds(0), seconds(1)."""
    slope = (seconds(1) - seconds(0)) / (1 - least)
    return seconds(1) - slope, slope


def _boxings(
    problem: CostNetwork, state: object, move: Redistribution
) -> Iterator[tuple[Boxing, bool]]:
    """Yield the boxings of a redistribution, and whether what each makes is cut."""
    shape = problem.program.tensor[move.tensor].shape
    for before, after in pairwise((state, *move.path)):
        step = boxing(before, after, shape, problem.mesh.cuts, uneven=True)
        if step is not None:
            yield step, after[0].is_split
