"""What one training step under a finished plan takes, op by op and boxing by boxing.

The same prices as those of the search (builder, redistribute), for plans that come from elsewhere:
an old plan on a new cluster, a plan by hand, a plan to be held against the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.compute import signature_s
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.redistribute import Path, Redistributor
from autoddl.sbp.boxing import Boxing, boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class BoxingCost:
    """One boxing of a step: the tensor, what is done to it, and its seconds."""

    tensor: str
    boxing: Boxing
    seconds: float


@dataclass(frozen=True)
class StepCost:
    """The seconds of a step: of every op, in the program's order, and of every boxing."""

    ops: tuple[tuple[str, float], ...]
    boxings: tuple[BoxingCost, ...]

    @property
    def compute_s(self) -> float:
        """Return the sum over the ops."""
        return sum(seconds for _, seconds in self.ops)

    @property
    def communication_s(self) -> float:
        """Return the sum over the boxings."""
        return sum(cost.seconds for cost in self.boxings)

    @property
    def step_s(self) -> float:
        """Return compute plus communication."""
        return self.compute_s + self.communication_s


def step_cost(
    program: Program,
    mesh: Mesh,
    profile: Profile,
    *,
    signatures: Mapping[str, NdSignature],
    held: Mapping[str, NdSbp],
    redistributions: Iterable[tuple[str, Path]],
) -> StepCost:
    """Return what a step costs under `profile`.

    `signatures` are those of all ops, `held` the states of inputs and variables, `redistributions`
    (tensor, states after each boxing) pairs.

    Raises:
        AutoDDLError: a tensor or op has no state, or no boxing leads from one state to the next.
    """
    missing = [op.name for op in program.ops if op.name not in signatures]
    if missing:
        raise AutoDDLError(
            f"step: op {missing[0]} has no signature; plan this program with autoddl.optimize"
        )
    ops = tuple(
        (op.name, signature_s(profile.device, program, op, signatures[op.name], mesh.shape))
        for op in program.ops
    )
    made = {t: signatures[op.name][o] for op in program.ops for o, t in op.outputs}
    prices = Redistributor(mesh, profile)
    boxings = []
    for name, path in redistributions:
        start = held.get(name) or made.get(name)
        if start is None:
            raise AutoDDLError(f"step: tensor {name} has no state; the plan is for another program")
        item_bytes = program.tensor[name].item_bytes
        for step in _steps(program.tensor[name].shape, start, path, mesh):
            boxings.append(BoxingCost(name, step, prices.step_s(step, item_bytes)))
    return StepCost(ops, tuple(boxings))


def _steps(shape: tuple[int, ...], start: NdSbp, path: Path, mesh: Mesh) -> Iterator[Boxing]:
    here = start
    for state in path:
        step = boxing(here, state, shape, mesh.shape, uneven=True)
        if step is None:
            raise AutoDDLError(
                f"step: no boxing leads from {here} to {state} for shape {shape} on mesh {mesh}"
            )
        yield step
        here = state
