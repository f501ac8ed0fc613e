"""Task templates: the tasks and buffers that a variable, an op, an identity or a boxing becomes.

Equal ones have equal tasks and buffers; so each template is built once, with numbers of its own: tasks
and buffers count from 0, the results of other tasks that it reads are INPUT, INPUT - 1, … On a mesh
of 2, S0 → B of 1 MiB is one transfer: it reads INPUT, and makes buffer 0 of 1 MiB, whose origin is INPUT.

Boxings have the tasks and buffers that OneFlow 0.9 makes of them on CUDA devices (NCCL collectives
that it issues on a stream of their own, slices that travel through the host from S to S); on
request most of them are ops of the compute stream instead (compute_stream.py).

Source: OneFlow 0.9, core/graph/boxing and core/graph/task_graph.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import numpy.typing as npt

from autoddl.engine.oneflow.model.memory.compute_stream import workspace_bytes
from autoddl.engine.oneflow.model.memory.task_graph import (
    BOXING,
    NONE,
    OUTPUT,
    WORKSPACE,
    CollectiveRequest,
    Ints,
)
from autoddl.ragged import Ragged
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from autoddl.sbp.state import B, NdSbp, Sbp

ALIGNMENT = 512
"""Every buffer starts and ends at a multiple of so many bytes."""
ROLE = NONE  # the kind of a buffer that holds a tensor of the program
INPUT = -1
GIVEN = NONE  # the order of a task that is no matter of its number


class OpSizes(NamedTuple):
    """Bytes of an op's results and its workspace, and what it shares memory with (kernel_memory.py)."""

    results: tuple[int, ...]
    workspace: int
    shared: tuple[str, bool] | None


class _Task(NamedTuple):
    """A task of a template; what it reads and waits for stands apart.

    `group` comes first in the order of a task (GIVEN: not known to the template), `shared` tells which of
    its reads may be its result's memory (or NONE), `writes` whether it writes there.
    """

    group: int
    shared: int
    first: int
    merged: bool
    transfer: bool
    inserted: bool
    writes: bool
    request: int


class _Buffer(NamedTuple):
    """A buffer of a template: `name` tells which of its names it has, `origin` is INPUT of a boxing."""

    kind: int
    name: int
    size: int
    producer: int
    origin: int
    reused: bool


_States = tuple[NdSbp, NdSbp]


class Columns:
    """The tasks and buffers of all templates, one behind the other, from each one's `first_…`."""

    def __init__(self, templates: Templates) -> None:
        self.first_task, self.first_buffer = np.array(templates.starts, dtype=np.int64).T
        self.tasks = _records(_Task, templates.tasks)
        self.buffers = _records(_Buffer, templates.buffers)
        self.reads, self.after = Ragged.of(templates.reads), Ragged.of(templates.after)


def _records(kind: type[tuple[Any, ...]], rows: Sequence[tuple[Any, ...]]) -> npt.NDArray[Any]:
    """Return rows as an array whose fields are those of the named tuple `kind`."""
    return np.array(rows, dtype=list(get_type_hints(kind).items()))


class Templates:
    """The templates of ranks at some coordinates, each built when it is first asked for.

    `size` returns the bytes of a form of tensors in a state. Where B becomes P the first device of an
    axis keeps the value: its coordinate is 0. `result` has by template the buffer that it makes.
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
        self.starts: list[tuple[int, int]] = [(0, 0)]
        self.tasks: list[_Task] = []
        self.reads: list[tuple[int, ...]] = []
        self.after: list[tuple[int, ...]] = []
        self.buffers: list[_Buffer] = []
        self.requests: list[CollectiveRequest] = []
        self._known: dict[object, int] = {}
        self._boxings: dict[tuple[int, NdSbp, NdSbp], int] = {}
        self._moved = INPUT  # the buffer that the newest template redistributes

    def source(self, form: int, state: NdSbp, *, merged: bool) -> int:
        """Return the template of a variable or an input."""
        key = "source", form, state, merged
        if key not in self._known:
            self._task(0, merged=merged)
            self._end(key, self._buffer(ROLE, self.size(form, state), reused=False))
        return self._known[key]

    def op(self, sizes: OpSizes, operands: Sequence[str], *, reused: bool, transfer: bool) -> int:
        """Return the template of an op with these inputs; whether it is merged is not told."""
        key = "op", sizes, operands, reused, transfer
        if key not in self._known:
            operand, writes = sizes.shared or ("", False)
            shared = operands.index(operand) if operand in operands else NONE
            reads = tuple(INPUT - n for n in range(len(operands)))
            self._task(GIVEN, reads, shared=shared, writes=writes, transfer=transfer)
            for name, size in enumerate(sizes.results):
                self._buffer(ROLE, size, reused=reused, name=name)
            if sizes.workspace:
                self._buffer(WORKSPACE, sizes.workspace, name=len(sizes.results))
            if transfer and operands and sizes.results:  # two pieces, each sent through the host
                self._transfer(after=(0,))
                self._transfer(after=(self._transfer(reads),))
            self._end(key, NONE)
        return self._known[key]

    def output(self, size: int) -> int:
        key = "output", size
        if key not in self._known:
            self._task(GIVEN, (INPUT,), merged=True)
            self._end(key, self._buffer(OUTPUT, size, reused=False))
        return self._known[key]

    def identity(self, form: int, state: NdSbp) -> int:
        key = "identity", form, state
        if key not in self._known:
            self._end(key, self._identity(GIVEN, INPUT, self.size(form, state)))
        return self._known[key]

    def boxing(self, form: int, state: NdSbp, goal: NdSbp) -> int:
        """Return the template of what brings a tensor to another state; NONE where nothing changes.

        Its result is INPUT where devices at these coordinates keep what they have.
        """
        key = form, state, goal
        found = self._boxings.get(key)
        if found is None:
            states = state.executed, goal.executed
            executed = "boxing", form, states
            pairs = enumerate(zip(self.mesh, *states, strict=True))
            axes = [axis for axis, (n, old, new) in pairs if n > 1 and old != new]
            if axes and executed not in self._known:
                self._end(executed, self._boxed(INPUT, form, states, axes))
            found = self._boxings[key] = self._known[executed] if axes else NONE
        return found

    @cached_property
    def columns(self) -> Columns:
        """Return all templates that have been asked for."""
        return Columns(self)

    def never_reused_bytes(self) -> Ints:
        """Return the bytes of each template whose memory nothing reuses."""
        buffers = self.columns.buffers
        own = np.where(buffers["reused"], 0, buffers["size"])
        return np.diff(np.append(0, own.cumsum())[self.columns.first_buffer])

    def _end(self, key: object, result: int) -> None:
        self._known[key] = len(self.result)
        self._moved = INPUT
        self.result.append(result)
        self.starts.append((len(self.tasks), len(self.buffers)))
        self.__dict__.pop("columns", None)

    def _task(
        self, group: int, reads: tuple[int, ...] = (), after: tuple[int, ...] = (), *,
        merged: bool = False, transfer: bool = False, inserted: bool = False,
        shared: int = NONE, writes: bool = False, request: int = NONE,
    ) -> int:  # fmt: skip
        tasks, buffers = self.starts[-1]
        first = len(self.buffers) - buffers
        self.tasks.append(_Task(group, shared, first, merged, transfer, inserted, writes, request))
        self.reads.append(reads)
        self.after.append(after)
        return len(self.tasks) - 1 - tasks

    def _buffer(self, kind: int, size: int, *, reused: bool = True, name: int = 0) -> int:
        """Add a result of the newest task."""
        tasks, buffers = self.starts[-1]
        task, number = len(self.tasks) - 1 - tasks, len(self.buffers) - buffers
        size = -(-size // ALIGNMENT) * ALIGNMENT
        origin = self._moved if self.tasks[-1].transfer and kind != ROLE else number
        self.buffers.append(_Buffer(kind, name, size, task, origin, reused))
        return number

    def _producer(self, buffer: int) -> int:
        return INPUT if buffer == INPUT else self.buffers[self.starts[-1][1] + buffer].producer

    def _identity(self, group: int, source: int, size: int) -> int:
        self._task(group, (source,), merged=True, shared=0)
        return self._buffer(BOXING, size)

    def _boxed(self, source: int, form: int, states: _States, axes: Sequence[int]) -> int:
        before, after = (self.size(form, state) for state in states)
        workspace = None
        if self.compute_stream:
            workspace = workspace_bytes(states, (before, after), self.mesh)
        if workspace is not None:  # an op of the compute stream replaces it
            self._task(4, (source,), merged=True, inserted=True)
            made = self._buffer(BOXING, after)
            if workspace:
                self._buffer(WORKSPACE, workspace)
            return made
        pairs = {(states[0][i], states[1][i]) for i in axes}
        if len(pairs) > 1:  # OneFlow sends pieces from any to any
            self._transfer((source,))
            self._buffer(WORKSPACE, before + after)
            return self._buffer(BOXING, after)
        pair = next(iter(pairs))
        if pair[1].kind == "P":
            return self._to_partial(source, form, states, axes)
        return self._primitive(source, pair, (before, after), axes)

    def _primitive(
        self, source: int, pair: tuple[Sbp, Sbp], sizes: tuple[int, int], axes: Sequence[int]
    ) -> int:
        """Make one boxing along some axes; `sizes` are bytes before and after."""
        old, new = pair
        before, after = sizes
        group = math.prod(self.mesh[i] for i in axes)
        if self.compute_stream and old != B:  # OneFlow has no collectives beside its ops there
            piece = before // group if new != B else before
            added = (after,) * (old.kind == "P")
            return self._through_host(source, piece, group, (after, *added), cut=new != B)
        if new == B or old.kind == "P":  # all-gather, all-reduce, reduce-scatter
            cut = old if new == B else new
            packed = cut.is_split and cut.dim != 0  # NCCL wants the pieces one behind the other
            first = self._transferred(source, before) if packed else source
            kind = ALL_REDUCE if new == B else REDUCE_SCATTER
            kind = kind if old.kind == "P" else ALL_GATHER
            self.requests.append(CollectiveRequest(kind, max(before, after), tuple(axes)))
            self._task(4, (first,), transfer=True, request=len(self.requests) - 1)
            moved = self._buffer(BOXING, after, reused=False)
            return self._transferred(moved, after) if packed else moved
        if old == B:
            return self._transferred(source, after)
        return self._through_host(source, before // group, group, (before,), cut=True)

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

    def _through_host(
        self, source: int, size: int, group: int, made: Sequence[int], *, cut: bool
    ) -> int:
        """Make pieces for all (`cut`) or let all have the whole, and one result of those that come.

        They are sent through the host; what is `made` of them is the result, and what it takes to add.
        """
        pieces = (
            [self._transferred(source, size) for _ in range(group)] if cut else [source] * group
        )
        kept, received = pieces[0], []
        for piece in pieces[1:]:
            sent = self._transfer((piece,))
            came = self._transfer(after=(sent,))  # from another rank, which sends at the same time
            self._transfer(after=(came,))
            received.append(self._buffer(BOXING, size, reused=False))
        self._transfer((kept, *received))
        result, *_ = [self._buffer(BOXING, each) for each in made]
        return result

    def _transfer(self, reads: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> int:
        """Add a part of a boxing; it comes `after` tasks that leave something in host memory."""
        return self._task(4, reads, after, transfer=True)

    def _transferred(self, source: int, size: int, *, reused: bool = True) -> int:
        self._transfer((source,))
        return self._buffer(BOXING, size, reused=reused)
