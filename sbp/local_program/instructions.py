"""Distributed programs: computations and communications of local tensors, and what each establishes.

What holds is a property, a tensor in a state, with which part of it each rank has. As the paper writes
it, e | Identity is B, e | All-Gather(d) is S(d), e | All-Reduce is P. A linear layer cut by its inputs:

    given  x in (S1), w in (S0)
    0  matmul fc: x in (S1), w in (S0) -> y in (P)
    1  all_reduce of y over axes (0,): (P) to (B)
    kept   y in (B)

Source: HAP (seed 001), syntax and semantic rules of its instructions (Hoare triples).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from autoddl.errors import AutoDDLError
from autoddl.sbp.boxing import boxing
from autoddl.sbp.local_program.shard_boxes import Box, Delivery, boxes, deliveries, extents, starts
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rewrites.micro_attributes import resized
from autoddl.sbp.rules import registry
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp

Attributes = tuple[tuple[str, Any], ...]


class Property(NamedTuple):
    """A tensor that is held in a state."""

    tensor: str
    state: NdSbp

    def __str__(self) -> str:
        return f"{self.tensor} in {self.state}"


@dataclass(frozen=True)
class LocalTensor:
    """A property, and by rank which part of the tensor it has: of 8 rows by 3/1 ((0, 6),), ((6, 8),)."""

    property: Property
    boxes: tuple[Box, ...] = field(repr=False)

    @classmethod
    def of(cls, tensor: Tensor, state: NdSbp, mesh: Mesh) -> LocalTensor:
        """Return what the ranks have of a tensor.

        Raises:
            AutoDDLError: the state does not cut it evenly, or in strides.
        """
        return cls(Property(tensor.name, state), boxes(tensor.shape, state, mesh.cuts))

    def shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of what a rank has."""
        return extents(self.boxes[rank])

    def start(self, rank: int) -> tuple[int, ...]:
        """Return where that begins in the logical tensor."""
        return starts(self.boxes[rank])


Operands = tuple[tuple[str, LocalTensor], ...]


@dataclass(frozen=True)
class Computation:
    """An op on local tensors, the same on every rank but for sizes.

    `reads` are its inputs by operand, `establishes` its outputs and what it updates in place;
    `attributes` by rank those that are others than the op's, since they are sizes. What depends on where
    a shard begins (`arange`, a table that is cut by its rows) is in `LocalTensor.start` of its operands.
    """

    op: str
    type: str
    reads: Operands
    establishes: Operands
    attributes: tuple[Attributes, ...] = field(repr=False)

    @classmethod
    def of(cls, program: Program, op: Op, signature: NdSignature, mesh: Mesh) -> Computation:
        """Return an op under a signature.

        Raises:
            AutoDDLError: the signature cuts an operand unevenly, or in strides.
        """
        held = {o: LocalTensor.of(program.tensor[t], signature[o], mesh) for o, t in op.operands}
        changed, whole = written(program, op), program.shapes(op)
        attributes = tuple(
            _local_attributes(op, {o: (whole[o], h.shape(rank)) for o, h in held.items()})
            for rank in range(mesh.size)
        )
        reads = tuple((o, held[o]) for o, _ in op.inputs)
        results = (*(o for o, _ in op.outputs), *(o for o, _ in op.inputs if o in changed))
        return cls(op.name, op.type, reads, tuple((o, held[o]) for o in results), attributes)

    def __str__(self) -> str:
        reads, results = (
            ", ".join(str(held.property) for _, held in side)
            for side in (self.reads, self.establishes)
        )
        return f"{self.type} {self.op}: {reads or 'nothing'} -> {results or 'nothing'}"


@dataclass(frozen=True)
class Communication:
    """A boxing of a tensor by groups of ranks, all at once; a primitive that is local moves nothing.

    `groups` are ranks in the order of the mesh axes, in one order of groups for all ranks. `reduction`
    says what is made of elements that several ranks give to one ("sum", "max", "min").
    """

    primitive: str
    axes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = field(repr=False)
    reduction: str
    reads: LocalTensor
    establishes: LocalTensor
    deliveries: tuple[Delivery, ...] = field(repr=False)
    item_bytes: int = field(repr=False)

    @classmethod
    def of(cls, tensor: Tensor, before: NdSbp, after: NdSbp, mesh: Mesh) -> Communication:
        """Return the one boxing that brings a tensor from a state to another.

        Raises:
            AutoDDLError: there is none, or a state cuts the tensor unevenly, or in strides.
        """
        step = boxing(before, after, tensor.shape, mesh.cuts)
        if step is None:
            raise AutoDDLError(
                f"tensor {tensor.name} of shape {tensor.shape} on mesh {mesh}: no single boxing brings "
                f"{before} to {after}; go through a state in between"
            )
        first = step.axes[0]
        partial = before[first] if before[first].is_partial else after[first]
        return cls(
            step.primitive, step.axes, tuple(mesh.groups(*step.axes)), partial.reduction,
            LocalTensor.of(tensor, before, mesh), LocalTensor.of(tensor, after, mesh),
            deliveries(tensor.shape, before, after, mesh.cuts, step), tensor.item_bytes,
        )  # fmt: skip

    def __str__(self) -> str:
        before, after = self.reads.property, self.establishes.property
        over = f"{self.primitive} of {before.tensor} over axes {self.axes}"
        return f"{over}: {before.state} to {after.state}"

    def sent_bytes(self, rank: int) -> int:
        """Return the bytes that a rank gives to others: each element as often as it is wanted."""
        return self._bytes(d for d in self.deliveries if d.sender == rank != d.receiver)

    def received_bytes(self, rank: int) -> int:
        """Return the bytes that a rank is given by others."""
        return self._bytes(d for d in self.deliveries if d.receiver == rank != d.sender)

    def _bytes(self, deliveries: Iterable[Delivery]) -> int:
        return self.item_bytes * sum(math.prod(extents(each.taken)) for each in deliveries)


Instruction: TypeAlias = Computation | Communication


@dataclass(frozen=True)
class LocalProgram:
    """What every rank does, instruction after instruction, in place of a program.

    `given` are its inputs and variables before the step, `kept` what it returns, in this order, and the
    variables after it.
    """

    program: Program = field(repr=False)
    mesh: Mesh
    given: tuple[LocalTensor, ...]
    instructions: tuple[Instruction, ...]
    kept: tuple[LocalTensor, ...]

    @cached_property
    def computations(self) -> Mapping[str, Computation]:
        """Return the computations by the names of their ops."""
        return {i.op: i for i in self.instructions if isinstance(i, Computation)}

    def __str__(self) -> str:
        lines = [f"{number:4d}  {each}" for number, each in enumerate(self.instructions)]
        ends = (
            "\n".join(f"{what} {held.property}" for held in held_all)
            for what, held_all in (("given", self.given), ("kept ", self.kept))
        )
        return "\n".join([next(ends), *lines, next(ends)])


def written(program: Program, op: Op) -> frozenset[str]:
    """Return the operands that an op updates in place: statistics, or a parameter and its states."""
    parameter = program.parameter.get(dict(op.inputs)["model_0"]) if op.is_update else None
    kept = (parameter.tensor, *parameter.states) if parameter is not None else ()
    return registry.written(op) | {operand for operand, tensor in op.inputs if tensor in kept}


def _local_attributes(
    op: Op, shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
) -> Attributes:
    """Return the attributes that are others on shards; `shapes` are the whole's and a shard's."""
    there = op.attr
    return tuple((name, v) for name, v in resized(op, shapes, None) if v != there[name])
