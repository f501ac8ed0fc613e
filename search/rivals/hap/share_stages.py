"""The stages of a planned program as lines in the shares, for HAP's linear program.

Ops come in the order of the program, each behind the boxings of what it reads. A collective ends the
stage before it. An op is a line through what it takes a device for its share of the mesh and for all:
exact where the same side of its roofline holds. Padded gathers and scatters are a line in the largest
share, as is a local slice; grouped gathers, which send all once, and all-reduces are constant. An
all-to-all, of which j sends B_j (1 − B_j), is no line and taken as constant, at what it takes under the
shares of the mesh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from autoddl.perfmodel.boxing_prices import BoxingPrices
from autoddl.perfmodel.collectives import BROADCAST
from autoddl.perfmodel.profile_entries import Device
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.boxing import ALL_REDUCE, ALL_TO_ALL, LOCAL, Boxing, boxing
from autoddl.sbp.layout import OUTPUT, Redistribution
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.shares import Portion, most, span, units
from autoddl.sbp.state import NdSbp
from autoddl.search.assigned.assigned_layout import assigned_layout
from autoddl.search.network.cost_network import CostNetwork, Floats
from autoddl.search.rivals.hap.shares_lp import SharedStage


def stages_of(
    problem: CostNetwork, assignment: Sequence[int], devices: Sequence[Device]
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
            whole, rows = OpWork.of(program, op, signature, (1,)), list[tuple[float, float]]()
            for place, device in enumerate(self.devices):
                _, count = span(self.cut, place)
                own = Portion(count, units(self.cut), self.size)
                work = OpWork.of(program, op, signature, (own,))
                share = count / units(self.cut)
                rows.append(_line(device_s(device, work), device_s(device, whole), share))
            self.known[key] = np.array(rows).T
        return self.known[key]

    def boxing(self, step: Boxing, item_bytes: int, after_cuts: bool) -> tuple[float, float]:
        """Return the seconds of a boxing that do not depend on shares, and those of max B."""
        now_s, largest = self.now.step_s(step, item_bytes), most(self.cut) / units(self.cut)
        way = self.now.way(step, item_bytes)
        if way is not None and way.collective in (ALL_REDUCE, ALL_TO_ALL, BROADCAST):
            return now_s, 0.0
        if way is None and not after_cuts:
            return now_s, 0.0
        # An even cut of so many times as much moves what a share of all would.
        times = 1 / largest if step.primitive == LOCAL else self.size
        all_of_it = replace(step, elements=round(step.elements * times))
        return _line(now_s, self.even.step_s(all_of_it, item_bytes), largest)


def _line(share_s: float, whole_s: float, share: float) -> tuple[float, float]:
    """Return the constant and the slope of the line through what a share takes, and all."""
    slope = (whole_s - share_s) / (1 - share)
    return whole_s - slope, slope


def _boxings(
    problem: CostNetwork, state: NdSbp, move: Redistribution
) -> Iterator[tuple[Boxing, bool]]:
    """Yield the boxings of a redistribution, and whether what each makes is cut."""
    shape = problem.program.tensor[move.tensor].shape
    for before, after in pairwise((state, *move.path)):
        step = boxing(before, after, shape, problem.mesh.cuts, uneven=True)
        if step is not None:
            yield step, after[0].is_split
