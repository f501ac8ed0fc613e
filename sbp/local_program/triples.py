"""Prove a distributed program against that of one device, instruction after instruction.

Each instruction is a Hoare triple: what it reads has to hold, and then what it establishes does. Ops do
what their rules say, communications are single boxings; what is overwritten holds in no other state any
more. So in the end what is kept is what one device has, whatever the values are.

Source: HAP (seed 001), semantic rules of instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.local_program.instructions import (
    Communication,
    Computation,
    Instruction,
    LocalProgram,
    LocalTensor,
    Operands,
    Property,
    written,
)
from autoddl.sbp.program import Op
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.rules.registry import OpView, signatures
from autoddl.sbp.state import NdSbp, ordered, orders


class _Fault(Exception):
    """What is wrong with an instruction, and what would be right."""


def check(local: LocalProgram, *, allow: frozenset[str] = frozenset()) -> None:
    """Raise AutoDDLError at the first instruction that does not follow, and name it.

    `allow` has the approximations that are permitted ("local_batchnorm").
    """
    proof = _Proof(local, allow)
    try:
        proof.begin()
        for each in local.instructions:
            proof.step(each)
        proof.end()
    except (_Fault, AutoDDLError) as fault:
        raise AutoDDLError(f"local program: {proof.told}: {fault}") from None


class _Proof:
    """What holds so far; `writes` counts by tensor how often it has been overwritten."""

    def __init__(self, local: LocalProgram, allow: frozenset[str]) -> None:
        self.local, self.allow = local, allow
        self.program, self.mesh = local.program, local.mesh
        self.number = -1
        self.holds: dict[Property, LocalTensor] = {}
        self.done: set[str] = set()
        self.writes: Counter[str] = Counter()

    @property
    def told(self) -> str:
        """Say which step is being proven."""
        if self.number < 0:
            return "given"
        if self.number >= len(self.local.instructions):
            return "kept"
        return f"instruction {self.number}, {shown(str(self.local.instructions[self.number]), 300)}"

    def step(self, each: Instruction) -> None:
        """Prove the next instruction."""
        self.number += 1
        if isinstance(each, Computation):
            self.compute(each)
        else:
            self.communicate(each)

    def begin(self) -> None:
        """Take what no op makes, each once."""
        wanted = [t.name for t in self.program.tensors if t.name not in self.program.producer]
        _same("tensors", sorted(h.property.tensor for h in self.local.given), sorted(wanted))
        self._establish(self.local.given)

    def compute(self, each: Computation) -> None:
        """Prove that a computation is an op of the program, in one of its signatures."""
        if each.op not in self.program.op or each.op in self.done:
            again = "is there twice" if each.op in self.done else "is none of the program"
            raise _Fault(f"op {shown(each.op, 100)} {again}; each op is there once")
        op = self.program.op[each.op]
        _same("operands that it reads", _tensors(each.reads), op.inputs)
        changed = [pair for pair in op.inputs if pair[0] in written(self.program, op)]
        results = (*op.outputs, *sorted(changed))
        _same("operands that it establishes", sorted(_tensors(each.establishes)), sorted(results))
        for operand, held in each.reads:
            self._read(held)
            self._in_turn(op, operand, held.property)
        states = {o: held.property.state for o, held in each.establishes + each.reads}
        if any(states[o] != held.property.state for o, held in each.establishes):
            raise _Fault("what it updates in place has two states; it stays in that which is read")
        self._signature(op, states)
        right = Computation.of(self.program, op, states, self.mesh)
        _same("type", each.type, right.type)
        _same("attributes", each.attributes, right.attributes)
        overwritten = {tensor for _, tensor in changed}
        self.writes.update(overwritten)
        if overwritten:
            self.holds = {p: h for p, h in self.holds.items() if p.tensor not in overwritten}
        self.done.add(each.op)
        self._establish(held for _, held in each.establishes)

    def communicate(self, each: Communication) -> None:
        """Prove that a communication is a boxing, by the right groups, of what they have."""
        before, after = each.reads.property, each.establishes.property
        self._read(each.reads)
        _same("tensor", after.tensor, before.tensor)
        tensor = self.program.tensor[before.tensor]
        right = Communication.of(tensor, before.state, after.state, self.mesh)
        for name in ("primitive", "axes", "groups", "reduction", "deliveries", "item_bytes"):
            _same(name, getattr(each, name), getattr(right, name))
        self._establish([each.establishes])

    def end(self) -> None:
        """Prove that all is done, and that what is kept holds: variables as they began."""
        self.number += 1
        missing = [op.name for op in self.program.ops if op.name not in self.done]
        if missing:
            raise _Fault(f"op {shown(missing[0], 100)} is missing; each op is there once")
        kept, count = self.local.kept, len(dict.fromkeys(self.program.outputs))
        returned = [held.property.tensor for held in kept[:count]]
        _same("tensors that are returned", returned, [*dict.fromkeys(self.program.outputs)])
        begun = {h.property for h in self.local.given} - self._inputs
        _same("variables", sorted(held.property for held in kept[count:]), sorted(begun))
        for held in kept:
            self._read(held)

    @cached_property
    def _inputs(self) -> set[Property]:
        return {h.property for h in self.local.given if h.property.tensor in self.program.inputs}

    @cached_property
    def _writers(self) -> dict[str, list[Op]]:
        """Return by tensor the ops that overwrite it."""
        found: dict[str, list[Op]] = {}
        for op in self.program.ops:
            changed = written(self.program, op)
            for operand, tensor in op.inputs:
                if operand in changed:
                    found.setdefault(tensor, []).append(op)
        return found

    def _in_turn(self, op: Op, operand: str, read: Property) -> None:
        """Check that an operand is read before it is overwritten, or after, as on one device."""
        place = self.program.columns.place
        before = [
            other
            for other in self._writers.get(read.tensor, ())
            if place[other.name] < place[op.name] and not other.is_update
        ]
        if self.writes[read.tensor] != len(before):
            raise _Fault(
                f"operand {operand} has been overwritten {self.writes[read.tensor]} times, on one "
                f"device {len(before)} times before this op; keep the order of the program"
            )

    def _signature(self, op: Op, states: NdSignature) -> None:
        """Check that states are a product of signatures that the op's rule has, in one order of axes."""
        view = OpView.of(op, self.program.shapes(op))
        one_axis = signatures(view, allow=self.allow)
        for axis in range(self.mesh.ndim):
            along = {name: state[axis].later(0) for name, state in states.items()}
            if along not in one_axis:
                told = ", ".join(f"{name} {sbp}" for name, sbp in along.items())
                raise _Fault(f"{told} along axis {axis} is no signature of {op.type}")
        if not any(_is_ordered(states.values(), order) for order in orders(self.mesh.cuts)):
            raise _Fault("its operands are cut by the axes in unlike orders; one order is for all")

    def _read(self, held: LocalTensor) -> None:
        """Check that a property holds, with just these parts."""
        there = self.holds.get(held.property)
        if there is None:
            name = held.property.tensor
            states = sorted(str(p.state) for p in self.holds if p.tensor == name)
            raise _Fault(
                f"{shown(held.property, 100)} does not hold; the tensor is in "
                f"{shown(' and '.join(states), 100) if states else 'no state yet'}"
            )
        _same("parts of ranks", held.boxes, there.boxes)

    def _establish(self, held: Iterable[LocalTensor]) -> None:
        for each in held:
            name, state = each.property
            right = LocalTensor.of(self.program.tensor[name], state, self.mesh)
            _same("parts of ranks", each.boxes, right.boxes)
            self.holds[each.property] = each


def _tensors(operands: Operands) -> tuple[tuple[str, str], ...]:
    return tuple((operand, held.property.tensor) for operand, held in operands)


def _is_ordered(states: Iterable[NdSbp], order: Sequence[int]) -> bool:
    return all(ordered([sbp.later(0) for sbp in state], order) == state for state in states)


def _same(what: str, got: object, right: object) -> None:
    if got != right:
        raise _Fault(f"{what}: got {shown(got, 200)}; right is {shown(right, 200)}")
