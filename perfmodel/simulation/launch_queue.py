"""Collectives that go one after the other in one order, and in part in one launch.

Devices have to issue collectives in the same order, or they wait for each other for ever. So an engine
fixes an order before the step begins, and what is ready waits for all before it. The order comes by
*waves*: the wave of a collective is how many others lie on the longest way to it; so what one waits for
is of an earlier wave. Within a wave order is by *layer*, the length of the longest way since the last
collective. The ops of a device run one behind the other, and each is a step of such ways.

Neighbours of one wave and of one kind (type and groups of devices) may go in one launch, which takes what
one collective of all their bytes takes. It begins when all are ready.

Ops a, b, c run in turn and make gradients of 4 MB each, whose sums are collectives A, B, C: all of wave
0, in layers 1, 2 and 3. With at most 8 MB in a launch A goes with B, when b has ended, and C behind
them. Where a collective takes 20 µs and 10 µs a MB, these are launches of 100 and 60 µs; alone, each
would take 60 µs.

Source: OneFlow 0.9, core/job/plan_util.cpp (GenCollectiveBoxingPlan), core/job/collective_boxing
(scheduler.cpp, nccl_executor_backend.cu, static_group_coordinator.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled
from autoddl.engine.model import CollectiveQueue

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
NONE = -1  # the kind of what is no collective; the chain of what has none before it


class Collectives(NamedTuple):
    """What each of some works, or kinds of boxings, is in a queue.

    `kind` tells type and groups of devices by number, NONE for what is no collective; `size` its bytes.
    """

    kind: Ints
    size: Ints


class LaunchLimits(NamedTuple):
    """What may go in one launch: at most `most` collectives of `threshold` bytes, each rounded up.

    A launch of n bytes of kind k takes the least of the lines `fixed[k] + n * slope[k]`; kinds that go
    alone have none, which is inf.
    """

    threshold: int
    most: int
    alignment: int
    fixed: Floats
    slope: Floats

    @classmethod
    def of(
        cls, queue: CollectiveQueue, lines: Sequence[Sequence[tuple[float, float]]]
    ) -> LaunchLimits:
        """Return the limits of a queue, with the lines of each kind: seconds, and seconds per byte."""
        fixed = np.full((len(lines), max(map(len, lines), default=0) or 1), np.inf)
        slope = np.zeros_like(fixed)
        for kind, some in enumerate(lines):
            for number, line in enumerate(some):
                fixed[kind, number], slope[kind, number] = line
        return cls(queue.threshold_bytes, queue.max_ops, queue.alignment, fixed, slope)


@compiled
def in_turn(waits: Ints, first: Ints, later: Ints) -> Ints:
    """Return works in an order in which they may run: of those that may the first goes first.

    Work n has the followers `later[first[n] : first[n + 1]]`, and waits for so many.
    """
    left, order, done = waits.copy(), np.empty(len(waits), np.int64), 0
    ready = [np.int64(0) for _ in range(0)]
    for work in range(len(waits)):
        if left[work] == 0:
            heappush(ready, np.int64(work))
    while len(ready):
        work = int(heappop(ready))
        order[done] = work
        done += 1
        for k in range(first[work], first[work + 1]):
            left[later[k]] -= 1
            if left[later[k]] == 0:
                heappush(ready, later[k])
    return order


@compiled
def places(
    first: Ints, later: Ints, order: Ints, chain: Ints, is_collective: Flags
) -> tuple[Ints, Ints]:
    """Return the wave of each work and its layer in there, for works in an order in which they may run.

    In this order the works of a chain go one behind the other.
    """
    count = len(order)
    wave, layer, last = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1)
    for work in order:
        before = last[chain[work]] if chain[work] >= 0 else -1
        if before >= 0:
            since, way = _behind(wave[before], layer[before], is_collective[before])
            if (since, way) > (wave[work], layer[work]):
                wave[work], layer[work] = since, way
        if chain[work] >= 0:
            last[chain[work]] = work
        since, way = _behind(wave[work], layer[work], is_collective[work])
        for k in range(first[work], first[work + 1]):
            other = later[k]
            if (since, way) > (wave[other], layer[other]):
                wave[other], layer[other] = since, way
    return wave, layer


@compiled
def _behind(wave: int, layer: int, is_collective: bool) -> tuple[int, int]:
    """Return the wave and layer of what waits for a work alone; a collective ends its wave."""
    return (wave + 1, 0) if is_collective else (wave, layer + 1)


def in_queue(order: Ints, wave: Ints, layer: Ints, kind: Ints) -> Ints:
    """Return the collectives as they are issued; what has the same wave and layer as in `order`."""
    found = order[kind[order] != NONE]
    issued: Ints = found[np.lexsort((layer[found], wave[found]))]
    return issued


@compiled
def launches(
    order: Ints, wave: Ints, kinds: Ints, size: Ints, limits: LaunchLimits
) -> tuple[Ints, Floats]:
    """Return with which work each is launched, itself for most, and the seconds of each joint launch.

    Seconds are those of the works with which others go; 0 where none does.
    """
    launch, seconds = np.arange(len(kinds)), np.zeros(len(kinds))
    head, members, total, whole = -1, 0, 0, 0
    for work in order:
        kind = kinds[work]
        more = -(-size[work] // limits.alignment) * limits.alignment
        if (
            head >= 0 and kinds[head] == kind and wave[head] == wave[work]
            and np.isfinite(limits.fixed[kind, 0])
            and members < limits.most and total + more <= limits.threshold
        ):  # fmt: skip
            launch[work] = head
            members, total, whole = members + 1, total + more, whole + size[work]
            least = np.inf
            for line in range(limits.fixed.shape[1]):
                least = min(least, limits.fixed[kind, line] + whole * limits.slope[kind, line])
            seconds[head] = least
        else:
            head, members, total, whole = work, 1, more, size[work]
    return launch, seconds


@compiled
def as_launched(
    begin: Ints, resource: Ints, seconds: Floats, first: Ints, later: Ints, order: Ints, launch: Ints,
    launch_s: Floats,
) -> tuple[Ints, Ints, Floats, Ints, Ints]:  # fmt: skip
    """Return the parts of works, as where they begin, resources and seconds, and what waits for what.

    A joint launch has the parts of its first work, longer; the others have none and end with it. Launches
    go one behind the other. `then[i]` waits for `first[i]`.
    """
    count = len(launch)
    starts, on, took, part = (
        np.zeros_like(begin),
        np.empty_like(resource),
        np.empty_like(seconds),
        0,
    )
    for work in range(count):
        if launch[work] == work:
            own, factor = 0.0, 1.0
            for k in range(begin[work], begin[work + 1]):
                own += seconds[k]
            if launch_s[work] > 0 and own > 0:
                factor = launch_s[work] / own
            for k in range(begin[work], begin[work + 1]):
                on[part], took[part] = resource[k], factor * seconds[k]
                part += 1
        starts[work + 1] = part
    most = len(later) + 2 * len(order)
    before, then, pairs = np.empty(most, np.int64), np.empty(most, np.int64), 0
    for work in range(count):
        for k in range(first[work], first[work + 1]):
            before[pairs], then[pairs] = work, launch[later[k]]
            pairs += 1
    last = -1
    for work in order:
        if launch[work] != work:
            before[pairs], then[pairs] = launch[work], work
            pairs += 1
            continue
        if last >= 0:
            before[pairs], then[pairs] = last, work
            pairs += 1
        last = work
    return starts, on[:part], took[:part], before[:pairs], then[:pairs]
