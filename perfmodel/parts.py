"""What the parts of a rank's tasks consist of: variables and inputs, ops, identities, boxings.

Equal parts have equal tasks and buffers; so each is built once, with numbers of its own: tasks and
buffers count from 0, the results of other tasks that it reads are INPUT, INPUT - 1, …

Source: OneFlow 0.9, core/graph/boxing and core/graph/task_graph.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autoddl.perfmodel.compute_stream import workspace_bytes
from autoddl.perfmodel.rank import BOXING, NONE, OUTPUT, WORKSPACE, Flags, Ints, Rows
from autoddl.sbp.state import B, NdSbp, Sbp

if TYPE_CHECKING:
    from autoddl.perfmodel.sizes import OpSizes

ALIGNMENT = 512
"""Every buffer starts and ends at a multiple of so many bytes."""
ROLE = NONE  # the kind of a buffer that holds a tensor of the program
INPUT = -1
GIVEN = NONE  # the order of a task that is no matter of its number

_States = tuple[NdSbp, NdSbp]


class _Task(NamedTuple):
    """A task without its reads; the fields are those of Columns."""

    group: int
    shared: int
    first: int
    merged: bool
    transfer: bool
    inserted: bool
    writes: bool


class _Buffer(NamedTuple):
    """A buffer; the fields are those of Columns."""

    kind: int
    name: int
    size: int
    producer: int
    origin: int
    reused: bool


class Columns(NamedTuple):
    """The tasks and buffers of all parts, one part behind the other, from the part's `first_…`.

    `group` comes first in the order of a task (GIVEN: not known to the part), `shared` tells which of
    its reads may be its result's memory (or NONE), `writes` whether it writes there. `name` tells which
    of the part's names a buffer has, `origin` is INPUT where a boxing made it.
    """

    first_task: Ints
    first_buffer: Ints
    reads: Rows
    after: Rows
    group: Ints
    shared: Ints
    first: Ints
    merged: Flags
    transfer: Flags
    inserted: Flags
    writes: Flags
    kind: Ints
    name: Ints
    size: Ints
    producer: Ints
    origin: Ints
    reused: Flags


class Parts:
    """The parts of ranks at some coordinates, each built when it is first asked for.

    `size` returns the bytes of a form of tensors in a state. Where B becomes P the first device of an
    axis keeps the value: its coordinate is 0.
    """

    def __init__(
        self,
        mesh: tuple[int, ...],
        coords: tuple[int, ...],
        size: Callable[[int, NdSbp], int],
        *,
        compute_stream: bool,
    ) -> None:
        self.mesh, self.coords, self.size = mesh, coords, size
        self.compute_stream = compute_stream
        self.result: list[int] = []
        self._known: dict[object, int] = {}
        self._boxings: dict[tuple[int, NdSbp, NdSbp], int] = {}
        self._starts: list[tuple[int, int]] = [(0, 0)]
        self._tasks: list[_Task] = []
        self._reads: list[tuple[int, ...]] = []
        self._after: list[tuple[int, ...]] = []
        self._buffers: list[_Buffer] = []
        self._moved = INPUT  # the buffer that the newest part redistributes
        self._columns: Columns | None = None

    def source(self, form: int, state: NdSbp, *, merged: bool) -> int:
        """Return the part that is a variable or an input."""
        key = "source", form, state, merged
        if key not in self._known:
            self._task(0, merged=merged)
            self._end(key, self._buffer(ROLE, self.size(form, state), reused=False))
        return self._known[key]

    def op(self, sizes: OpSizes, operands: Sequence[str], *, reused: bool) -> int:
        """Return the part that is an op with these inputs; whether it is merged is not told."""
        key = "op", sizes, operands, reused
        if key not in self._known:
            operand, writes = sizes.shared or ("", False)
            shared = operands.index(operand) if operand in operands else NONE
            reads = tuple(INPUT - n for n in range(len(operands)))
            self._task(GIVEN, reads, shared=shared, writes=writes)
            for name, size in enumerate(sizes.results):
                self._buffer(ROLE, size, reused=reused, name=name)
            if sizes.workspace:
                self._buffer(WORKSPACE, sizes.workspace, name=len(sizes.results))
            self._end(key, NONE)
        return self._known[key]

    def output(self, size: int) -> int:
        """Return the part that gives a whole tensor back."""
        key = "output", size
        if key not in self._known:
            self._task(GIVEN, (INPUT,), merged=True)
            self._end(key, self._buffer(OUTPUT, size, reused=False))
        return self._known[key]

    def identity(self, form: int, state: NdSbp) -> int:
        """Return the part that is an identity behind a boxing."""
        key = "identity", form, state
        if key not in self._known:
            self._end(key, self._identity(GIVEN, INPUT, self.size(form, state)))
        return self._known[key]

    def boxing(self, form: int, state: NdSbp, goal: NdSbp) -> int:
        """Return the part that brings a tensor to another state; NONE where nothing changes.

        Its result is INPUT where devices at these coordinates keep what they have.
        """
        key = form, state, goal
        found = self._boxings.get(key)
        if found is None:
            states = state.executed, goal.executed
            executed = "boxing", form, states
            axes = self._changed(states)
            if axes and executed not in self._known:
                self._end(executed, self._boxed(INPUT, form, states, axes))
            found = self._boxings[key] = self._known[executed] if axes else NONE
        return found

    def columns(self) -> Columns:
        """Return all parts that have been asked for."""
        if self._columns is None:
            first_task, first_buffer = np.array(self._starts, dtype=np.int64).T
            tasks = np.array(self._tasks, dtype=np.int64).reshape(-1, 7).T
            buffers = np.array(self._buffers, dtype=np.int64).reshape(-1, 6).T
            group, shared, first = tasks[:3]
            merged, transfer, inserted, writes = tasks[3:] != 0
            kind, name, size, producer, origin = buffers[:5]
            self._columns = Columns(
                first_task, first_buffer, Rows.of(self._reads), Rows.of(self._after), group, shared,
                first, merged, transfer, inserted, writes, kind, name, size, producer, origin,
                buffers[5] != 0,
            )  # fmt: skip
        return self._columns

    def never_reused_bytes(self) -> Ints:
        """Return the bytes of each part whose memory nothing reuses."""
        sums = np.cumsum([0, *[0 if b.reused else b.size for b in self._buffers]])
        return np.diff(sums[[first for _, first in self._starts]])

    def _end(self, key: object, result: int) -> None:
        """Finish the newest part."""
        self._known[key] = len(self.result)
        self._moved = INPUT
        self.result.append(result)
        self._starts.append((len(self._tasks), len(self._buffers)))
        self._columns = None

    def _task(
        self, group: int, reads: tuple[int, ...] = (), after: tuple[int, ...] = (), *,
        merged: bool = False, transfer: bool = False, inserted: bool = False,
        shared: int = NONE, writes: bool = False,
    ) -> int:  # fmt: skip
        tasks, buffers = self._starts[-1]
        first = len(self._buffers) - buffers
        self._tasks.append(_Task(group, shared, first, merged, transfer, inserted, writes))
        self._reads.append(reads)
        self._after.append(after)
        return len(self._tasks) - 1 - tasks

    def _buffer(self, kind: int, size: int, *, reused: bool = True, name: int = 0) -> int:
        """Add a result of the newest task."""
        tasks, buffers = self._starts[-1]
        task, number = len(self._tasks) - 1 - tasks, len(self._buffers) - buffers
        origin = self._moved if self._tasks[-1].transfer else number
        size = -(-size // ALIGNMENT) * ALIGNMENT
        self._buffers.append(_Buffer(kind, name, size, task, origin, reused))
        return number

    def _producer(self, buffer: int) -> int:
        """Return the task that makes a buffer."""
        return INPUT if buffer == INPUT else self._buffers[self._starts[-1][1] + buffer].producer

    def _identity(self, group: int, source: int, size: int) -> int:
        self._task(group, (source,), merged=True, shared=0)
        return self._buffer(BOXING, size)

    def _changed(self, states: _States) -> list[int]:
        """Return the axes on which something changes."""
        pairs = enumerate(zip(self.mesh, *states, strict=True))
        return [i for i, (n, old, new) in pairs if n > 1 and old != new]

    def _boxed(self, source: int, form: int, states: _States, axes: Sequence[int]) -> int:
        before, after = (self.size(form, state) for state in states)
        workspace = None
        if self.compute_stream:
            workspace = workspace_bytes(states, (before, after), self.mesh)
        if workspace is not None:
            return self._inserted(source, after, workspace)
        pairs = {(states[0][i], states[1][i]) for i in axes}
        if len(pairs) > 1:  # OneFlow sends pieces from any to any
            self._transfer((source,))
            self._buffer(WORKSPACE, before + after)
            return self._buffer(BOXING, after)
        pair = next(iter(pairs))
        if pair[1].kind == "P":
            return self._to_partial(source, form, states, axes)
        group = math.prod(self.mesh[i] for i in axes)
        return self._primitive(source, pair, (before, after, group))

    def _inserted(self, source: int, size: int, workspace: int) -> int:
        """Add the op that replaces a boxing on the compute stream."""
        self._task(4, (source,), merged=True, inserted=True)
        made = self._buffer(BOXING, size)
        if workspace:
            self._buffer(WORKSPACE, workspace)
        return made

    def _primitive(self, source: int, pair: tuple[Sbp, Sbp], sizes: tuple[int, int, int]) -> int:
        """Make one boxing in groups of devices; `sizes` are bytes before and after, devices."""
        old, new = pair
        before, after, group = sizes
        if new == B or old.kind == "P":  # all-gather, all-reduce, reduce-scatter
            cut = old if new == B else new
            packed = cut.is_split and cut.dim != 0  # NCCL wants the pieces one behind the other
            first = self._transferred(source, before) if packed else source
            moved = self._transferred(first, after, reused=False)
            return self._transferred(moved, after) if packed else moved
        if old == B:
            return self._transferred(source, after)
        return self._to_other_dim(source, before, group)

    def _to_partial(self, source: int, form: int, states: _States, axes: Sequence[int]) -> int:
        if states[0][axes[0]] != B:  # over B, with an identity of OneFlow's own
            middle = NdSbp(B if i in axes else s for i, s in enumerate(states[1]))
            whole = self._boxed(source, form, (states[0], middle), axes)
            source = self._moved = self._identity(3, whole, self.size(form, states[1]))
        if self.compute_stream:  # a part of the boxing reads it, so that it stays
            self._transfer((source,))
        if all(self.coords[i] == 0 for i in axes):
            return source
        self._transfer(after=(self._producer(source),))
        return self._buffer(BOXING, self.size(form, states[1]), reused=False)

    def _to_other_dim(self, source: int, size: int, group: int) -> int:
        """Make an all-to-all: slices for all, sent through the host, and one buffer to collect them."""
        pieces = [self._transferred(source, size // group) for _ in range(group)]
        kept, received = pieces[0], []
        begun = self._producer(source)
        for piece in pieces[1:]:
            sent = self._transfer((piece,))
            self._transfer(after=(self._transfer(after=(sent,)),))
            made = self._transfer()  # on another rank, at about that time
            arrived = self._transfer(after=(made, begun))
            self._transfer(after=(arrived,))
            received.append(self._buffer(BOXING, size // group, reused=False))
        self._transfer((kept, *received))
        return self._buffer(BOXING, size)

    def _transfer(self, reads: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> int:
        """Add a part of a boxing; it comes `after` tasks that leave something in host memory."""
        return self._task(4, reads, after, transfer=True)

    def _transferred(self, source: int, size: int, *, reused: bool = True) -> int:
        self._transfer((source,))
        return self._buffer(BOXING, size, reused=reused)
