"""Collectives that go one after the other in one order, and in part together.

Devices have to issue collectives in the same order, or they wait for each other for ever. So an engine
fixes an order before the step begins, and what is ready waits for all before it. The order comes by
*waves*: the wave of a collective is how many others lie on the longest way to it; so what one waits for
is of an earlier wave. Within a wave order is by *layer*, the length of the longest way since the last
collective. The ops of a device run one behind the other, and each is a step of such ways.

Neighbours of one wave and of one kind (type and groups of devices) may go as one launch, which takes what
one message of all their bytes takes. None of them begins before all are ready.

Ops a, b, c run in turn and make gradients of 4 MB each, whose sums are collectives A, B, C: all of wave
0, in layers 1, 2 and 3. With at most 8 MB in a launch A goes with B, when b has ended, and C behind
them. Where a message takes 20 µs and 10 µs a MB, these are launches of 100 and 60 µs; alone, each would
take 60 µs.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoddl.compiled import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Messages(NamedTuple):
    """What each of some works, or kinds of boxings, is in a queue.

    `joins` is the kind of its collective, -1 if it is none; `size` its bytes.
    """

    joins: Ints
    size: Ints


class LaunchLimits(NamedTuple):
    """What may go together: at most `most` messages of `threshold` bytes in all, each rounded up.

    A launch of n bytes of kind k takes the least of the lines `fixed[k] + n * slope[k]`; kinds that do
    not join have none, which is inf.
    """

    threshold: int
    most: int
    alignment: int
    fixed: Floats
    slope: Floats


@compiled
def in_turn(
    waits: Ints, first: Ints, later: Ints, joins: Ints, is_op: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return the collectives in their order, and the wave of every work.

    Of works n the followers are `later[first[n] : first[n + 1]]`; ops run by these, and of those that may
    run the first does.
    """
    count = len(waits)
    left, wave, layer = waits.copy(), np.zeros(count, np.int64), np.zeros(count, np.int64)
    ready = [np.int64(0) for _ in range(0)]
    for work in range(count):
        if left[work] == 0:
            heappush(ready, np.int64(work))
    last, found, queued = -1, np.empty(count, np.int64), 0
    while len(ready):
        work = int(heappop(ready))
        if is_op[work]:  # none of the ops before it makes a message between them
            if last >= 0 and (wave[last], layer[last] + 1) > (wave[work], layer[work]):
                wave[work], layer[work] = wave[last], layer[last] + 1
            last = work
        if joins[work] >= 0:
            found[queued] = work
            queued += 1
        since = wave[work] + (joins[work] >= 0)
        way = 0 if joins[work] >= 0 else layer[work] + 1
        for k in range(first[work], first[work + 1]):
            other = later[k]
            if (since, way) > (wave[other], layer[other]):
                wave[other], layer[other] = since, way
            left[other] -= 1
            if left[other] == 0:
                heappush(ready, other)
    order = found[:queued]
    order = order[np.argsort(layer[order], kind="mergesort")]
    return order[np.argsort(wave[order], kind="mergesort")], wave


@compiled
def launches(
    order: Ints, wave: Ints, joins: Ints, size: Ints, limits: LaunchLimits
) -> tuple[Ints, Floats]:
    """Return with which work each is launched, itself for most, and the seconds of each joint launch.

    Seconds are those of the works with which others go; 0 where none does.
    """
    launch, seconds = np.arange(len(joins)), np.zeros(len(joins))
    head, members, total, whole = -1, 0, 0, 0
    for work in order:
        kind = joins[work]
        more = -(-size[work] // limits.alignment) * limits.alignment
        if (
            head >= 0 and joins[head] == kind and wave[head] == wave[work]
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
