"""The forward part of a distributed program, for engines whose autograd runs the backward pass.

Local gradients add up over all ranks to the gradient: that of a tensor in B is in P, that of one in P is
in B, and that of S(d) in S(d). So each communication has a dual, again one boxing, that brings the
gradient of its result to that of what it reads; ops need nothing, local autograd is their dual:

    all_gather      x: (S0) to (B)       reduce_scatter   gradient of x: (P) to (S0)
    all_reduce      y: (P) to (B)        all_reduce       gradient of y: (P) to (B)

The loss is the sum of the ranks' losses times `ForwardPart.seeds`: where it is in B, that of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoddl.errors import AutoDDLError
from autoddl.sbp.boxing import boxing
from autoddl.sbp.local_program.instructions import (
    Communication,
    Computation,
    Instruction,
    LocalProgram,
    Property,
)
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program, Tensor
from autoddl.sbp.state import B, NdSbp, P


@dataclass(frozen=True)
class ForwardPart:
    """The instructions that make a loss, and what the backward pass adds to local autograd.

    `differentiated` are the tensors that need gradients. `duals` has the duals of the communications of
    such tensors, by their numbers; `gradients` by trained parameter what brings its gradient, as local
    autograd leaves it, into the state of the parameter. `seeds` are by rank.
    """

    instructions: tuple[Instruction, ...]
    loss: Property
    differentiated: frozenset[str]
    duals: Mapping[int, Communication]
    gradients: Mapping[str, tuple[Communication, ...]]
    seeds: tuple[float, ...]


def forward_part(local: LocalProgram) -> ForwardPart:
    """Return the forward part of a distributed program.

    Raises:
        AutoDDLError: the program has no loss, or a tensor that needs a gradient has none (P(max)).
    """
    loss = _loss(local)
    instructions = _forward(local, loss)
    differentiated = _differentiated(local.program, instructions, loss.tensor)
    duals = {
        number: dual(local.program.tensor[each.reads.property.tensor], each, local.mesh)
        for number, each in enumerate(instructions)
        if isinstance(each, Communication) and each.reads.property.tensor in differentiated
    }
    states = {held.property.tensor: held.property.state for held in local.given}
    gradients = {
        p.tensor: _summed(local.program.tensor[p.tensor], states[p.tensor], local.mesh)
        for p in local.program.parameters
        if p.tensor in differentiated
    }
    seeds = tuple(_seed(loss.state, local.mesh.coords(rank)) for rank in range(local.mesh.size))
    return ForwardPart(instructions, loss, differentiated, duals, gradients, seeds)


def dual_state(state: NdSbp) -> NdSbp:
    """Return the state of the gradient of a tensor in a state.

    Raises:
        AutoDDLError: the whole is not linear in the parts, or there is no one whole.
    """
    for sbp in state:
        if sbp.kind != "S" and sbp not in (B, P):
            raise AutoDDLError(f"state {state}: {sbp} has no gradient; allowed are S(d), B and P")
    return NdSbp({B: P, P: B}.get(sbp, sbp) for sbp in state)


def dual(tensor: Tensor, each: Communication, mesh: Mesh) -> Communication:
    """Return what brings the gradient of a communication's result to the gradient of what it reads.

    Raises:
        AutoDDLError: as dual_state.
    """
    before, after = each.reads.property.state, each.establishes.property.state
    return Communication.of(tensor, dual_state(after), dual_state(before), mesh)


def _loss(local: LocalProgram) -> Property:
    name = local.program.loss
    if name is None:
        raise AutoDDLError("local program: it has no loss; take the program of a training step")
    kept = (held.property for held in local.kept if held.property.tensor == name)
    made = local.computations[local.program.producer[name].name].establishes
    return next(kept, next(held.property for _, held in made if held.property.tensor == name))


def _forward(local: LocalProgram, loss: Property) -> tuple[Instruction, ...]:
    """Return the ops of the forward pass with the communications that these and the loss wait for."""
    found, wanted = list[Instruction](), {loss}
    for each in reversed(local.instructions):
        if isinstance(each, Computation):
            taken = local.program.op[each.op].phase == "forward"
            reads = [held.property for _, held in each.reads]
        else:
            taken, reads = each.establishes.property in wanted, [each.reads.property]
            wanted.discard(each.establishes.property)
        if taken:
            found.append(each)
            wanted.update(reads)
    return tuple(reversed(found))


def _differentiated(
    program: Program, instructions: tuple[Instruction, ...], loss: str
) -> frozenset[str]:
    """Return the tensors between a trained parameter and the loss."""
    ops = [program.op[each.op] for each in instructions if isinstance(each, Computation)]
    reached = {p.tensor for p in program.parameters if p.update is not None}
    for op in ops:
        if any(tensor in reached for _, tensor in op.inputs):
            made = (program.tensor[tensor] for _, tensor in op.outputs)
            reached |= {tensor.name for tensor in made if "float" in tensor.dtype}
    wanted = {loss}
    for op in reversed(ops):
        if any(tensor in wanted for _, tensor in op.outputs):
            wanted |= {tensor for _, tensor in op.inputs}
    return frozenset(reached & wanted)


def _summed(tensor: Tensor, state: NdSbp, mesh: Mesh) -> tuple[Communication, ...]:
    """Return the boxings of a gradient to the state of its parameter: all at once where one does it."""
    found, here = list[Communication](), dual_state(state)
    if boxing(here, state, tensor.shape, mesh.cuts) is not None:
        return (Communication.of(tensor, here, state, mesh),)
    for axis, sbp in enumerate(state):
        there = here.replace(axis, sbp)
        if there != here:
            found.append(Communication.of(tensor, here, there, mesh))
            here = there
    return tuple(found)


def _seed(state: NdSbp, coords: tuple[int, ...]) -> float:
    """Return what a rank's loss counts: of copies the first does."""
    copied = [place for sbp, place in zip(state, coords, strict=True) if sbp is B]
    return 0.0 if any(copied) else 1.0
