"""Which values a part of the forward pass has: tensors in their states, and who reads them.

A value is a tensor together with the boxings that it has gone through; values make a graph of which
functions are cut out later. Ops that change nothing are left out.

Example: x made in (P) and read in (B) by fc1, in (P) by a sum, is two values: Value("x"), read by the
sum, and Value("x", ((B),)), made of the first by one boxing and read by fc1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoddl.perfmodel.boxing_prices import GroupedGather
from autoddl.plan.value import PlanValue
from autoddl.sbp.boxing import gathers
from autoddl.sbp.layout import OUTPUT
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program
from autoddl.sbp.state import B, NdSbp

_REAL = ("float", "bfloat")


@dataclass(frozen=True)
class Value:
    """A tensor as it is made (`path` is empty), or after the boxings whose states `path` lists."""

    tensor: str
    path: tuple[NdSbp, ...] = ()

    @property
    def source(self) -> Value:
        """Return the value from which the last boxing starts."""
        return Value(self.tensor, self.path[:-1])


class Section:
    """A part of the forward pass that is written as one function with those that it calls.

    `ops` are in the order in which they are written. `arguments` map tensors that come from outside
    (inputs, what other stages send) to the states in which they come. `results` are tensors that go
    out, as they are made or after the boxings of a path. It is run by part number `stage` of the plan.
    """

    def __init__(
        self,
        plan: PlanValue,
        ops: Sequence[Op],
        arguments: Mapping[str, NdSbp],
        results: Iterable[Value],
        stage: int = 0,
    ) -> None:
        self.plan: PlanValue = plan
        self.mesh: Mesh = plan.parts[stage].mesh
        self._grouped = frozenset(plan.parts[stage].grouped)
        self.program: Program = plan.program
        self.arguments = dict(arguments)
        self._path = {
            (r.tensor, reader): r.path for r in plan.redistributions for reader in r.readers
        }
        self._same: dict[str, Value] = {}
        self.ops = tuple(op for op in ops if not self._skipped(op))
        self.results = tuple(self._resolved(value) for value in results)

    def read(self, op: Op, operand: str, tensor: str) -> Value:
        return self._resolved(Value(tensor, self._path.get((tensor, (op.name, operand)), ())))

    def output(self, tensor: str) -> Value:
        return self._resolved(Value(tensor, self._path.get((tensor, (OUTPUT, "")), ())))

    def reads(self, op: Op) -> dict[str, Value]:
        return {operand: self.read(op, operand, tensor) for operand, tensor in op.inputs}

    @cached_property
    def made_by(self) -> Mapping[str, Op]:
        """Return the op of this section that makes each tensor."""
        return {tensor: op for op in self.ops for _, tensor in op.outputs}

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Op, ...]]:
        """Return the ops that read each value as it is."""
        found: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in dict.fromkeys(self.reads(op).values()):
                found.setdefault(value, []).append(op)
        return {value: tuple(ops) for value, ops in found.items()}

    @cached_property
    def boxed(self) -> Mapping[Value, tuple[Value, ...]]:
        """Return what is made of each value by one boxing."""
        found: dict[Value, dict[Value, None]] = {}
        for value in (*self.readers, *self.results):
            while value.path:
                found.setdefault(value.source, {})[value] = None
                value = value.source
        return {value: tuple(others) for value, others in found.items()}

    def state(self, value: Value) -> NdSbp:
        if value.path:
            return value.path[-1]
        if value.tensor in self.arguments:
            return self.arguments[value.tensor]
        return self.plan.layout.made[value.tensor]

    def is_grouped(self, value: Value) -> bool:
        """Tell whether a gather, of a boxed value or of its gradient, is a broadcast from each place."""
        tensor, states = (
            self.program.tensor[value.tensor],
            (self.state(value.source), self.state(value)),
        )
        steps = gathers(*states, tensor.shape, self.mesh.cuts)
        return any(GroupedGather.of(step, tensor.item_bytes) in self._grouped for step in steps)

    def is_trained(self, value: Value) -> bool:
        """Tell whether a gradient may flow through a value: whether it is a real number at all."""
        return self.program.tensor[value.tensor].dtype.startswith(_REAL)

    def summed_axes(self, op: Op, operand: str) -> tuple[int, ...]:
        """Return the axes that cut an op and not an operand: its gradients add up over them."""
        signature, tensor = self.plan.signatures[op.name], dict(op.inputs)[operand]
        variable = self.program.parameter.get(tensor)
        frozen = variable is not None and variable.update is None
        if frozen or not self.program.tensor[tensor].dtype.startswith(_REAL):
            return ()
        return tuple(
            axis
            for axis, entry in enumerate(signature[operand])
            if entry == B and any(signature[o][axis] != B for o, _ in op.operands)
        )

    def late_axes(self, value: Value) -> tuple[int, ...]:
        """Return the axes over which gradients of a redistributed value are added up as it goes back.

        That is so where all that read it leave summands; then what is cut gets its part of the sum.
        """
        if not value.path or value in self.boxed or value in self.results:
            return ()
        reads = [
            set(self.summed_axes(op, operand))
            for op in self.readers.get(value, ())
            for operand, read in self.reads(op).items()
            if read == value
        ]
        return tuple(sorted(set.intersection(*reads))) if reads else ()

    def _resolved(self, value: Value) -> Value:
        same = self._same.get(value.tensor)
        return value if same is None else Value(same.tensor, same.path + value.path)

    def _skipped(self, op: Op) -> bool:
        """Tell whether an op changes nothing, and take its output for its input from here on."""
        if len(op.inputs) != 1 or not _is_identity(op, self.program.shapes(op)):
            return False
        ((operand, tensor),), ((out, made),) = op.inputs, op.outputs
        signature = self.plan.signatures[op.name]
        if signature[operand] != signature[out]:
            return False
        self._same[made] = self.read(op, operand, tensor)
        return True


def _is_identity(op: Op, shape: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether an op returns its one input as it is: a reshape to the same shape and the like."""
    if op.type in ("reshape", "expand"):
        return shape["in_0"] == shape["out_0"]
    if op.type == "transpose":
        return op.attr["perm"] == tuple(range(len(op.attr["perm"])))
    return op.type in ("identity", "amp_white_identity", "amp_black_identity")


def forward_ops(program: Program) -> tuple[Op, ...]:
    """Return the ops on which the loss depends in the order of the user's code, as far as the data allow.

    The engine numbers ops as they are written ("model.fc1-matmul-3"); a graph's job lists them in some
    topological order.
    """
    waiting = _before_loss(program)
    left = {
        name: {program.producer[t].name for _, t in op.inputs if t in program.producer}
        for name, op in waiting.items()
    }
    followers: dict[str, list[str]] = {name: [] for name in waiting}
    for name, before in left.items():
        for other in before:
            followers[other].append(name)
    order: list[Op] = []
    ready = sorted((name for name, before in left.items() if not before), key=_number)
    while ready:
        name = ready.pop(0)
        order.append(waiting[name])
        for other in followers[name]:
            left[other].discard(name)
            if not left[other]:
                ready.append(other)
        ready.sort(key=_number)
    return tuple(order)


def _before_loss(program: Program) -> dict[str, Op]:
    """Return the ops on which the loss depends, by name; others make what else the graph returns."""
    found: dict[str, Op] = {}
    waiting = [program.loss] if program.loss else []
    while waiting:
        op = program.producer.get(waiting.pop())
        if op is not None and op.phase == "forward" and op.name not in found:
            found[op.name] = op
            waiting += [tensor for _, tensor in op.inputs]
    return found


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
