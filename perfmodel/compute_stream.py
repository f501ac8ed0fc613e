"""What OneFlow does on request (`nccl.enable_use_compute_stream`): boxings as ops of the compute stream.

They are then ops like others: a step runs them and everything else one after another, in one order,
and their results are reused as other results are. That takes less memory, and nothing overlaps.

Source: OneFlow 0.9, core/job_rewriter/insert_nccl_logical_op_pass.cpp, user/kernels/nccl_logical_*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from autoddl.perfmodel.rank import RankTasks
from autoddl.sbp.state import B, NdSbp, Sbp

AXES = 2  # OneFlow converts boxings on so many axes, those of equal changes side by side as one
Change = tuple[int, Sbp, Sbp]


def is_converted(before: NdSbp, after: NdSbp, mesh: Sequence[int]) -> bool:
    """Tell whether OneFlow makes an op of the boxing from one state to another."""
    return workspace_bytes((before, after), (0, 0), mesh) is not None


def workspace_bytes(
    states: tuple[NdSbp, NdSbp], sizes: tuple[int, int], mesh: Sequence[int]
) -> int | None:
    """Return the workspace of the op that replaces a boxing; None where OneFlow leaves the boxing.

    `states` and `sizes` (bytes on one device) are those before and after. Where the pass has no
    collective for a change, each device sends every other its part, through buffers of all parts.
    """
    before, after = sizes
    axes = _reduced(states, mesh)
    if len(axes) > AXES:
        return None
    changed = [axis for axis in axes if axis[1] != axis[2]]
    if len(changed) == 1 and (changed[0] is axes[-1] or _outer_sum(axes)):
        _, old, new = changed[0]
        if new.kind == "P":
            return None
        scattered = old.kind == "P" and new.is_split
        if old != B and not (scattered and len(axes) > 1):
            cuts = (old, new) if old.is_split and new.is_split else (old if new == B else new,)
            packed = sum(cut.is_split and cut.dim != 0 for cut in cuts)
            return packed * max(before, after)
    if any(new.kind == "P" for _, _, new in axes):
        return None
    return _exchanged(axes, before, after)


def _reduced(states: tuple[NdSbp, NdSbp], mesh: Sequence[int]) -> list[Change]:
    """Return (devices, before, after) of each axis; neighbours with equal states are one."""
    pairs = [(n, old, new) for n, old, new in zip(mesh, *states, strict=True) if n > 1]
    found = []
    for (old, new), equal in groupby(pairs, key=lambda axis: axis[1:]):
        count = 1
        for axis in equal:
            count *= axis[0]
        found.append((count, old, new))
    return found


def _outer_sum(axes: Sequence[Change]) -> bool:
    """Tell whether only the outer axis changes, from a partial sum to the whole."""
    (_, old, new), *inner = axes
    return old.kind == "P" and new == B and all(old == new for _, old, new in inner)


def _exchanged(axes: Sequence[Change], before: int, after: int) -> int:
    """Return the bytes of the buffers in which devices send each other parts."""
    sent, received = before, after
    for count, old, new in axes:
        if old == new:
            continue
        if old == B:
            sent //= count
        elif new == B:
            sent *= count
        if old.kind == "P":
            received *= count
    summed = any(old.kind == "P" for _, old, _ in axes)
    return sent + received + (after if summed else 0)


def stream_order(rank: RankTasks) -> list[int]:
    """Return the tasks of a rank in the order of its one stream.

    OneFlow takes its graph breadth first, with the newest readers of a result first, and runs the op
    that replaces a boxing just before what reads it.
    """
    tasks = rank.tasks
    inner = [moved or n in tasks.inserted for n, moved in enumerate(tasks.transfer)]
    before = [_sources(rank.before, others, inner) for others in rank.before]
    for number, others in _updates_after_readers(rank, inner):
        before[number] = [*dict.fromkeys((*before[number], *others))]
    nodes = sorted((n for n, skip in enumerate(inner) if not skip), key=tasks.order.__getitem__)
    readers: list[list[int]] = [[] for _ in before]
    for number in reversed(nodes):
        for source in before[number]:
            readers[source].append(number)
    waiting = [len(sources) for sources in before]
    queue = deque(number for number in nodes if not waiting[number])
    order: list[int] = []
    placed = [False] * len(before)
    while queue:
        number = queue.popleft()
        _place(rank.before, number, order, placed)
        for reader in readers[number]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                queue.append(reader)
    for number, done in enumerate(placed):
        if not done:  # parts of boxings that nothing here waits for
            _place(rank.before, number, order, placed)
    return order


def _sources(
    before: Sequence[Sequence[int]], others: Sequence[int], inner: Sequence[bool]
) -> Sequence[int]:
    """Return what a task waits for that waits for these `others`, as if boxings were not there."""
    if not any([inner[other] for other in others]):
        return others
    found: dict[int, None] = {}
    stack = [*others]
    while stack:
        source = stack.pop()
        if inner[source]:
            stack += before[source]
        else:
            found[source] = None
    return list(found)


def _updates_after_readers(
    rank: RankTasks, inner: Sequence[bool]
) -> Iterable[tuple[int, list[int]]]:
    """Yield each update of a variable with the tasks that read the variable as it was."""
    buffers, phase = rank.buffers, rank.tasks.phase
    for number, kind in enumerate(buffers.kind):
        first = rank.tasks.first[buffers.producer[number]]
        if kind == "parameter" and buffers.origin[number] == first:
            updates = [n for n in buffers.readers[number] if phase[n] == "optimizer"]
            others = [n for n in buffers.readers[number] if phase[n] != "optimizer"]
            others = [n for n in others if not inner[n]]
            for update in updates:
                yield update, others


def _place(
    before: Sequence[Sequence[int]], number: int, order: list[int], placed: list[bool]
) -> None:
    """Append a task behind the parts of boxings that it waits for."""
    stack = [number]
    while stack:
        task = stack[-1]
        missing = [other for other in before[task] if not placed[other]]
        if missing:
            stack += reversed(missing)
            continue
        stack.pop()
        if not placed[task]:
            placed[task] = True
            order.append(task)
