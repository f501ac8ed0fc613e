"""What one rank of OneFlow executes and keeps: the tasks of a planned program, and their buffers.

A task is an op, a variable, an input, an identity that a redistribution adds, or a part of a boxing.
Boxings have the tasks and buffers that OneFlow 0.9 makes of them on CUDA devices (NCCL collectives
that OneFlow issues on a stream of their own, slices that travel through the host from S to S); on
request most of them are ops of the compute stream instead (compute_stream.py).

Source: OneFlow 0.9, core/graph/boxing and core/graph/task_graph.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from autoddl.perfmodel.assembly import Chosen, assembled, order_of
from autoddl.perfmodel.parts import INPUT
from autoddl.perfmodel.rank import NONE, Ints, RankTasks
from autoddl.perfmodel.sizes import LocalSizes
from autoddl.perfmodel.wiring import BITS, MASK, SUM
from autoddl.sbp.program import Program
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import NdSbp


class Redistributed(Protocol):
    """A tensor that some readers want in another state: the states after each boxing.

    `readers` are (op, operand) pairs; those that are no op stand for the graph's outputs. The boxing
    behind the first `early` ones waits for the op `after`, if there is one.
    """

    @property
    def tensor(self) -> str: ...
    @property
    def path(self) -> tuple[NdSbp, ...]: ...
    @property
    def readers(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def after(self) -> str: ...
    @property
    def early(self) -> int: ...


def comes_alone(redistribution: Redistributed) -> bool:
    """Tell whether its first boxing is for its readers only, later than that for others.

    It then begins with an identity of its own; boxings from one result to one state are shared.
    """
    return bool(redistribution.after) and not redistribution.early


@dataclass(frozen=True)
class Layout:
    """The states of a planned program, as a plan has them.

    `signatures` maps ops to the states of their operands, `variables` parameters, buffers and
    optimizer states to theirs, `inputs` the graph's inputs. `after` maps ops to others that they wait
    for without reading from them.
    """

    signatures: Mapping[str, NdSignature]
    variables: Mapping[str, NdSbp]
    inputs: Mapping[str, NdSbp]
    redistributions: Sequence[Redistributed] = ()
    after: Mapping[str, str] = field(default_factory=dict)

    def made(self, program: Program) -> dict[str, NdSbp]:
        """Return the state in which each tensor of a program is made or kept."""
        results = {t: self.signatures[op.name][o] for op in program.ops for o, t in op.outputs}
        return {**results, **self.variables, **self.inputs}

    def state(self, program: Program, tensor: str) -> NdSbp | None:
        """Return the state in which one tensor of a program is made or kept; None if it has none."""
        for held in (self.inputs, self.variables):
            if tensor in held:
                return held[tensor]
        if tensor not in program.order.made:
            return None
        position, output = program.order.made[tensor]
        op = program.ops[position]
        return self.signatures[op.name][op.outputs[output][0]]


def rank_tasks(
    program: Program,
    mesh: Sequence[int],
    layout: Layout,
    coords: Sequence[int] | None = None,
    *,
    sizes: LocalSizes | None = None,
    compute_stream: bool = False,
) -> RankTasks:
    """Return the tasks of the rank at mesh coordinates `coords` (all 1 at most, by default).

    Ranks differ only where B becomes P: the first device of an axis keeps the value, others make
    zeros. So the coordinates count as 0 or not 0. `sizes` are those of another layout of the program.
    With `compute_stream` boxings are ops of the compute stream, as far as OneFlow can do that.
    """
    place = tuple(min(1, size - 1) for size in mesh) if coords is None else tuple(coords)
    known = sizes or LocalSizes(program, mesh)
    return _Maker(program, layout, known, place, compute_stream=compute_stream).make()


class _Maker:
    """Choose the parts of a rank in the order of the program; a boxing when its first reader comes.

    Parts are numbered: variables and inputs, then ops, then what is added as it comes. A result is one
    number, `part << BITS` and which of the part's buffers it is.
    """

    def __init__(
        self, program: Program, layout: Layout, sizes: LocalSizes, coords: tuple[int, ...],
        *, compute_stream: bool,
    ) -> None:  # fmt: skip
        self.program, self.layout, self.compute_stream = program, layout, compute_stream
        self.sizes, self.wiring = sizes, sizes.wiring
        self.parts = sizes.parts(coords, compute_stream=compute_stream)
        tensor, inputs, variables = self.wiring.tensor, layout.inputs, layout.variables
        names = [name for held in (inputs, variables) for name in held if name in tensor]
        self.inputs = sum(name in tensor for name in inputs)  # the first of what is kept
        self.kept = [tensor[name] for name in names]
        self.states = [
            state for held in (inputs, variables) for name, state in held.items() if name in tensor
        ]
        self.first_added = len(self.kept) + len(program.ops)
        self.boxed: dict[int, int] = {}  # by number of source and boxing
        self.added: list[int] = []  # see Chosen
        self.after: list[tuple[int, int]] = []  # parts, and the ops that they wait for

    def make(self) -> RankTasks:
        number, kept = self.wiring.op, len(self.kept)
        waits = [(kept + number[o], number[t]) for o, t in self.layout.after.items() if o in number]
        results = self._results()
        chosen = Chosen(
            np.array(self.kept, dtype=np.int64),
            np.concatenate((np.array(self._kept(), dtype=np.int64), self._ops())),
            results,
            np.array(self.added, dtype=np.int64).reshape(-1, 5),
            np.array([*waits, *self.after], dtype=np.int64).reshape(-1, 2),
            compute_stream=self.compute_stream,
        )
        return assembled(self.wiring, self.parts.columns(), chosen)

    def _kept(self) -> list[int]:
        form, source = self.wiring.form.tolist(), self.parts.source
        kept = enumerate(zip(self.kept, self.states, strict=True))
        return [source(form[tensor], state, merged=n < self.inputs) for n, (tensor, state) in kept]

    def _ops(self) -> Ints:
        """Return the parts of all ops; few kinds of ops have few signatures, one object each."""
        signatures = list(map(self.layout.signatures.__getitem__, self.wiring.op))
        one = np.fromiter(map(id, signatures), dtype=np.int64, count=len(signatures))
        _, number = np.unique(one, return_inverse=True)
        keys = number * (len(signatures) + 1) + self.wiring.kind
        _, first, known = np.unique(keys, return_index=True, return_inverse=True)
        parts = [self._op(number, signatures[number]) for number in first.tolist()]
        return np.array(parts, dtype=np.int64)[known]

    def _op(self, number: int, signature: NdSignature) -> int:
        op, sizes = self.program.ops[number], self.sizes.op(number, signature)
        return self.parts.op(sizes, tuple([o for o, _ in op.inputs]), reused=op.type != SUM)

    def _results(self) -> Ints:
        """Return which result each op input reads, NONE where the engine's scheduler makes it."""
        wiring, first_op = self.wiring, len(self.kept) << BITS
        kept = np.full(len(wiring.tensor), NONE)
        kept[self.kept] = np.arange(len(self.kept)) << BITS
        found = np.where(wiring.made == NONE, kept[wiring.read], wiring.made + first_op)
        wanted, returned = self._wanted()
        done = {NONE: NONE}
        slots = np.array(sorted(wanted), dtype=np.int64)
        slots = slots[found[slots] != NONE]
        for slot, source, op in zip(
            slots.tolist(), found[slots].tolist(), wiring.reader[slots].tolist(), strict=True
        ):
            number = wanted[slot]
            if number not in done:
                done[number] = self._redistributed(number, source, op)
        found[slots] = [done[wanted[slot]] for slot in slots.tolist()]
        for name in dict.fromkeys(self.program.outputs):
            tensor = wiring.tensor[name]
            made = int(wiring.result[tensor])
            source = int(kept[tensor]) if made == NONE else made + first_op
            if source != NONE:
                self._output(name, source, returned.get(name, NONE), done)
        return found

    def _wanted(self) -> tuple[dict[int, int], dict[str, int]]:
        """Return the redistributions by the input of an op that they are for, and by output."""
        ops, slot_of, wanted = self.wiring.op, self.wiring.slot, dict[int, int]()
        outputs: dict[str, tuple[tuple[str, str], int]] = {}
        for number, item in enumerate(self.layout.redistributions):
            tensor = item.tensor
            for reader in item.readers:
                op = ops.get(reader[0])
                if op is not None:
                    wanted[slot_of(tensor, op, reader[1])] = number
                elif outputs.setdefault(tensor, (reader, number))[0] == reader:
                    outputs[tensor] = reader, number
        wanted.pop(NONE, None)
        return wanted, {name: number for name, (_, number) in outputs.items()}

    def _output(self, name: str, source: int, number: int, done: dict[int, int]) -> None:
        end, tensor = len(self.program.ops), self.wiring.tensor[name]
        if number not in done:
            done[number] = self._redistributed(number, source, end)
        part = self.parts.output(self.program.tensors[tensor].size_bytes)
        self._add(part, tensor, source if number == NONE else done[number], end, order_of(1, end))

    def _redistributed(self, number: int, source: int, op: int) -> int:
        """Add the identities of a redistribution with the boxings between them, before an op."""
        item, parts = self.layout.redistributions[number], self.parts
        tensor, state = self.wiring.tensor[item.tensor], self._state(source)
        form, path = int(self.wiring.form[tensor]), item.path
        if item.tensor in self.layout.variables or comes_alone(item):
            path = (state, *path)
        late = len(path) - len(item.path) + item.early if item.early else 0
        for step, goal in enumerate(path):
            boxing = parts.boxing(form, state, goal)
            if boxing != NONE:
                key = (source << BITS) + boxing  # once per tensor and state
                if key not in self.boxed:
                    made = self._add(boxing, tensor, source, op) + parts.result[boxing]
                    self.boxed[key] = source if parts.result[boxing] == INPUT else made
                source = self.boxed[key]
            order = order_of(2, number, step)
            source = self._add(parts.identity(form, goal), tensor, source, op, order)
            if item.after and step == late:
                self.after.append((source >> BITS, self.wiring.op[item.after]))
            state = goal
        return source

    def _add(self, kind: int, tensor: int, source: int, op: int, order: int = 0) -> int:
        """Add a part; return its first result."""
        part = self.first_added + len(self.added) // 5
        self.added += (kind, tensor, source, op, order)
        return part << BITS

    def _state(self, source: int) -> NdSbp:
        """Return the state of a variable, an input or a result of an op."""
        part = source >> BITS
        if part < len(self.kept):
            return self.states[part]
        op = self.program.ops[part - len(self.kept)]
        return self.layout.signatures[op.name][op.outputs[source & MASK][0]]
