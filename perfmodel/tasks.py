"""What one rank of OneFlow executes and keeps: the tasks of a planned program, and their buffers.

A task is an op, a variable, an input, an identity that a redistribution adds, or a part of a boxing.
Boxings have the tasks and buffers that OneFlow 0.9 makes of them on CUDA devices (NCCL collectives
that OneFlow issues on a stream of their own, slices that travel through the host from S to S); on
request most of them are ops of the compute stream instead (compute_stream.py).

Source: OneFlow 0.9, core/graph/boxing and core/graph/task_graph.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autoddl.perfmodel.compute_stream import workspace_bytes
from autoddl.perfmodel.rank import Buffers, RankTasks, Tasks
from autoddl.perfmodel.sizes import LocalSizes
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.candidates import NdSignature
from autoddl.sbp.state import B, NdSbp, Sbp

ALIGNMENT = 512
"""Every buffer starts and ends at a multiple of so many bytes."""
ARRIVAL, BUFFER, SUM = "arrival", "identity_buffer", "acc"
"""The types of ops for what comes from another stage, micro-batches in flight, sums of gradients."""


_States = tuple[NdSbp, NdSbp]


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
    return _Maker(program, layout, place, known, compute_stream=compute_stream).make()


class _Maker:
    """Build tasks in the order of the program; a tensor's boxings when their first reader comes."""

    def __init__(
        self, program: Program, layout: Layout, coords: tuple[int, ...], sizes: LocalSizes,
        *, compute_stream: bool,
    ) -> None:  # fmt: skip
        self.program, self.layout, self.coords = program, layout, coords
        self.compute_stream = compute_stream
        self.sizes, self.mesh, self.tensors = sizes, sizes.mesh, program.tensor
        self.tasks, self.buffers = Tasks(), Buffers()
        self.made: dict[str, tuple[int, NdSbp]] = {}
        self.wanted = {
            (r.tensor, reader): number
            for number, r in enumerate(layout.redistributions)
            for reader in r.readers
        }
        self.redistributed = {r.tensor for r in layout.redistributions}
        self.done: dict[int, int] = {}
        self.boxed: dict[tuple[int, NdSbp], int] = {}
        self.changes: dict[_States, tuple[_States, list[int]]] = {}
        self.workspaces: dict[tuple[_States, int, int], int | None] = {}
        self.started: dict[str, int] = {}
        self.moved = -1  # the buffer that is being redistributed
        self.phase = "forward"

    def make(self) -> RankTasks:
        for name, state in (*self.layout.inputs.items(), *self.layout.variables.items()):
            if name in self.tensors:
                self._source(name, state, merged=name in self.layout.inputs)
        for index, op in enumerate(self.program.ops):
            self._op(index, op)
        for name in dict.fromkeys(self.program.outputs):
            self._output(name)
        self.tasks.first.append(len(self.buffers))
        return RankTasks(self.tasks, self.buffers, self.compute_stream)

    def _task(
        self,
        name: str,
        order: int,
        reads: tuple[int, ...] = (),
        *,
        merged: bool = False,
        transfer: bool = False,
    ) -> int:
        tasks, readers = self.tasks, self.buffers.readers
        number = len(tasks.order)
        tasks.name.append(name)
        tasks.order.append(order)
        tasks.reads.append(reads)
        tasks.merged.append(merged)
        tasks.transfer.append(transfer)
        tasks.phase.append(self.phase)
        tasks.first.append(len(readers))
        for buffer in reads if len(reads) < 2 else set(reads):
            readers[buffer].append(number)
        return number

    def _buffer(self, tensor: str, kind: str, size: int, *, reused: bool = True) -> int:
        """Add a result of the newest task."""
        buffers, task = self.buffers, len(self.tasks.order) - 1
        number = len(buffers.size)
        buffers.tensor.append(tensor)
        buffers.kind.append(kind)
        buffers.size.append(-(-size // ALIGNMENT) * ALIGNMENT)
        buffers.producer.append(task)
        buffers.reused.append(reused)
        buffers.origin.append(self.moved if self.tasks.transfer[task] else number)
        buffers.readers.append([])
        return number

    def _source(self, name: str, state: NdSbp, *, merged: bool) -> None:
        self._task(name, _order(0, len(self.tasks)), merged=merged)
        tensor = self.tensors[name]
        buffer = self._buffer(name, tensor.role, self._bytes(tensor, state), reused=False)
        self.made[name] = buffer, state

    def _op(self, index: int, op: Op) -> None:
        self.phase = op.phase
        signature = self.layout.signatures[op.name]
        reads: dict[str, int] = {}
        for operand, name in op.inputs:
            made = self.made.get(name)
            if made is not None:  # else the engine's scheduler makes it
                boxed = name in self.redistributed
                reads[operand] = self._read(name, (op.name, operand)) if boxed else made[0]
        number = self._task(
            op.name, _order(1, index), tuple(reads.values()), merged=self._is_merged(op)
        )
        self.started[op.name] = number
        if op.name in self.layout.after:
            self.tasks.after[number] = (self.started[self.layout.after[op.name]],)
        sizes = self.sizes.op(op, signature)
        for (operand, name), size in zip(op.outputs, sizes.results, strict=True):
            role = self.tensors[name].role
            buffer = self._buffer(name, role, size, reused=op.type != SUM)
            self.made[name] = buffer, signature[operand]
        if sizes.workspace:
            self._buffer(op.name, "workspace", sizes.workspace)
        if sizes.shared is not None and sizes.shared[0] in reads:
            self.tasks.shares[number] = reads[sizes.shared[0]], sizes.shared[1]

    def _is_merged(self, op: Op) -> bool:
        if self.compute_stream:
            return op.type not in (ARRIVAL, BUFFER, SUM)
        return op.phase != "optimizer" and op.type not in (ARRIVAL, BUFFER)

    def _output(self, name: str) -> None:
        reader = next(
            (r for t, r in self.wanted if t == name and r[0] not in self.program.op), ("", "")
        )
        if name not in self.made:
            return
        buffer = self._read(name, reader)
        order = _order(1, len(self.program.ops))
        self._task(f"output {name}", order, (buffer,), merged=True)
        self._buffer(name, "output", self.tensors[name].size_bytes, reused=False)

    def _read(self, name: str, reader: tuple[str, str]) -> int:
        """Return the buffer that a reader gets of what has been made."""
        number = self.wanted.get((name, reader))
        if number is None:
            return self.made[name][0]
        if number not in self.done:
            self.done[number] = self._redistributed(number)
        return self.done[number]

    def _redistributed(self, number: int) -> int:
        """Make the identities of a redistribution with the boxings between them."""
        redistribution = self.layout.redistributions[number]
        name = redistribution.tensor
        buffer, state = self.made[name]
        own = (state,) if name in self.layout.variables or comes_alone(redistribution) else ()
        late = len(own) + redistribution.early if redistribution.early else 0
        for step, goal in enumerate((*own, *redistribution.path)):
            buffer = self._boxing(buffer, name, state, goal)
            buffer = self._identity(buffer, name, goal, _order(2, number, step))
            if redistribution.after and step == late:
                waiting = self.buffers.producer[buffer]
                self.tasks.after[waiting] = (self.started[redistribution.after],)
            state = goal
        return buffer

    def _identity(self, source: int, name: str, state: NdSbp, order: int) -> int:
        task = self._task(f"identity {name}", order, (source,), merged=True)
        self.tasks.shares[task] = source, False
        return self._buffer(name, "boxing", self._bytes(self.tensors[name], state))

    def _boxing(self, source: int, name: str, state: NdSbp, goal: NdSbp) -> int:
        """Return the buffer that holds a tensor in another state, once per tensor and state."""
        change = self.changes.get((state, goal))
        if change is None:
            states = state.executed, goal.executed
            pairs = enumerate(zip(self.mesh, *states, strict=True))
            axes = [i for i, (n, old, new) in pairs if n > 1 and old != new]
            change = self.changes[state, goal] = states, axes
        states, axes = change
        if not axes:
            return source
        key = (source, states[1])
        if key not in self.boxed:
            self.moved = self.buffers.origin[source]
            self.boxed[key] = self._boxed(source, name, states, axes)
        return self.boxed[key]

    def _boxed(
        self, source: int, name: str, states: tuple[NdSbp, NdSbp], axes: Sequence[int]
    ) -> int:
        tensor = self.tensors[name]
        before, after = (self._bytes(tensor, s) for s in states)
        if self.compute_stream:
            key = states, before, after
            if key not in self.workspaces:
                self.workspaces[key] = workspace_bytes(states, (before, after), self.mesh)
            workspace = self.workspaces[key]
            if workspace is not None:
                return self._inserted(source, name, after, workspace)
        pairs = {(states[0][i], states[1][i]) for i in axes}
        if len(pairs) > 1:  # OneFlow sends pieces from any to any
            self._transfer(name, (source,))
            self._buffer(name, "workspace", before + after)
            return self._buffer(name, "boxing", after)
        pair = next(iter(pairs))
        if pair[1].kind == "P":
            return self._to_partial(source, name, states, axes)
        group = math.prod(self.mesh[i] for i in axes)
        return self._primitive(source, name, pair, (before, after, group))

    def _inserted(self, source: int, name: str, size: int, workspace: int) -> int:
        """Add the op that replaces a boxing on the compute stream."""
        order = _order(4, len(self.tasks))
        self.tasks.inserted.add(self._task(f"boxing {name}", order, (source,), merged=True))
        made = self._buffer(name, "boxing", size)
        if workspace:
            self._buffer(name, "workspace", workspace)
        return made

    def _primitive(
        self, source: int, name: str, pair: tuple[Sbp, Sbp], sizes: tuple[int, int, int]
    ) -> int:
        """Make one boxing in groups of devices; `sizes` are bytes before and after, devices."""
        old, new = pair
        before, after, group = sizes
        if new == B or old.kind == "P":  # all-gather, all-reduce, reduce-scatter
            cut = old if new == B else new
            packed = cut.is_split and cut.dim != 0  # NCCL wants the pieces one behind the other
            first = self._transferred(source, name, before) if packed else source
            moved = self._transferred(first, name, after, reused=False)
            return self._transferred(moved, name, after) if packed else moved
        if old == B:
            return self._transferred(source, name, after)
        return self._to_other_dim(source, name, before, group)

    def _to_partial(
        self, source: int, name: str, states: tuple[NdSbp, NdSbp], axes: Sequence[int]
    ) -> int:
        after = self._bytes(self.tensors[name], states[1])
        if states[0][axes[0]] != B:  # over B, with an identity of OneFlow's own
            middle = NdSbp(B if i in axes else s for i, s in enumerate(states[1]))
            whole = self._boxed(source, name, (states[0], middle), axes)
            order = _order(3, len(self.tasks))
            source = self.moved = self._identity(whole, name, states[1], order)
        if self.compute_stream:  # a part of the boxing reads it, so that it stays
            self._transfer(name, (source,))
        if all(self.coords[i] == 0 for i in axes):
            return source
        self._transfer(name, after=(self.buffers.producer[source],))
        return self._buffer(name, "boxing", after, reused=False)

    def _to_other_dim(self, source: int, name: str, size: int, group: int) -> int:
        """Make an all-to-all: slices for all, sent through the host, and one buffer to collect them."""
        pieces = [self._transferred(source, name, size // group) for _ in range(group)]
        kept, received = pieces[0], []
        begun = self.buffers.producer[source]
        for piece in pieces[1:]:
            sent = self._transfer(name, (piece,))
            self._transfer(name, after=(self._transfer(name, after=(sent,)),))
            made = self._transfer(name)  # on another rank, at about that time
            arrived = self._transfer(name, after=(made, begun))
            self._transfer(name, after=(arrived,))
            received.append(self._buffer(name, "boxing", size // group, reused=False))
        self._transfer(name, (kept, *received))
        return self._buffer(name, "boxing", size)

    def _transfer(self, name: str, reads: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> int:
        """Add a part of a boxing; it comes `after` tasks that leave something in host memory."""
        number = self._task(name, _order(4, len(self.tasks)), reads, transfer=True)
        if after:
            self.tasks.after[number] = after
        return number

    def _transferred(self, source: int, name: str, size: int, *, reused: bool = True) -> int:
        self._transfer(name, (source,))
        return self._buffer(name, "boxing", size, reused=reused)

    def _bytes(self, tensor: Tensor, state: NdSbp) -> int:
        return self.sizes.tensor(tensor, state)


def _order(group: int, number: int, step: int = 0) -> int:
    """Return the place of a task among others: by group, number, step."""
    return (group << 60) + (number << 20) + step
