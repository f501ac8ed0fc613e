"""What one training step under a planned layout takes, op by op and boxing by boxing, and how sure.

The same prices as those of the search (search.builder, redistribute), for layouts that are given: an
old plan on a new cluster, a plan to be held against the clock.

What a price is sure of is the mean error of the kernel or link that it comes from. All prices from one
source err alike, so their errors add up; different sources err independently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.compute import kernel_name, signature_s
from autoddl.perfmodel.profile import Kernel, Link, Profile
from autoddl.perfmodel.redistribute import Path, Redistributor
from autoddl.perfmodel.tasks import Layout
from autoddl.sbp.boxing import Boxing, boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import NdSbp

UNKNOWN_ERROR = 0.3  # relative, of a price that no measurement stands behind


@dataclass(frozen=True)
class Price:
    """The seconds of one op or boxing, what they were computed from, and its mean relative error."""

    name: str
    seconds: float
    source: str
    error: float
    boxing: Boxing | None = None


@dataclass(frozen=True)
class StepCost:
    """The prices of a step: of every op in the program's order, and of every boxing."""

    ops: tuple[Price, ...]
    boxings: tuple[Price, ...]

    @property
    def compute_s(self) -> float:
        """Return the sum over the ops."""
        return sum(price.seconds for price in self.ops)

    @property
    def communication_s(self) -> float:
        """Return the sum over the boxings."""
        return sum(price.seconds for price in self.boxings)

    @property
    def step_s(self) -> float:
        """Return compute plus communication."""
        return self.compute_s + self.communication_s

    @property
    def uncertainty_s(self) -> float:
        """Return by how much `step_s` may be off: the root of the sum of the sources' squares."""
        off: dict[str, float] = {}
        for price in (*self.ops, *self.boxings):
            off[price.source] = off.get(price.source, 0.0) + price.seconds * price.error
        return math.hypot(*off.values())


def step_cost(program: Program, mesh: Mesh, profile: Profile, layout: Layout) -> StepCost:
    """Return what a step costs under `profile`, in seconds.

    Raises:
        AutoDDLError: a tensor or op has no state, or no boxing leads from one state to the next.
    """
    missing = [op.name for op in program.ops if op.name not in layout.signatures]
    if missing:
        raise AutoDDLError(
            f"step: op {missing[0]} has no signature; plan this program with autoddl.optimize"
        )
    return StepCost(
        tuple(_ops(program, mesh, profile, layout)), tuple(_boxings(program, mesh, profile, layout))
    )


def _ops(program: Program, mesh: Mesh, profile: Profile, layout: Layout) -> Iterator[Price]:
    device = profile.device
    for op in program.ops:
        signature = layout.signatures[op.name]
        seconds = signature_s(device, program, op, signature, mesh.shape)
        source = kernel_name(device, program, op, signature, mesh.shape)
        kernel = device.kernels.get(source)
        yield Price(op.name, seconds, source, _error(kernel))


def _boxings(program: Program, mesh: Mesh, profile: Profile, layout: Layout) -> Iterator[Price]:
    held = layout.made(program)
    prices = Redistributor(mesh, profile)
    for item in layout.redistributions:
        name = item.tensor
        if name not in held:
            raise AutoDDLError(f"step: tensor {name} has no state; the plan is for another program")
        tensor = program.tensor[name]
        for step in _steps(tensor.shape, held[name], item.path, mesh):
            link = prices.link(step)
            source = (
                "local" if link is None else f"{link.collective} {link.level} {link.group_size}"
            )
            seconds = prices.step_s(step, tensor.item_bytes)
            yield Price(name, seconds, source, _error(link), step)


def _error(source: Kernel | Link | None) -> float:
    known = None if source is None else source.mean_error
    return UNKNOWN_ERROR if known is None else known


def _steps(shape: tuple[int, ...], start: NdSbp, path: Path, mesh: Mesh) -> Iterable[Boxing]:
    here = start
    for state in path:
        step = boxing(here, state, shape, mesh.shape, uneven=True)
        if step is None:
            raise AutoDDLError(
                f"step: no boxing leads from {here} to {state} for shape {shape} on mesh {mesh}"
            )
        yield step
        here = state
