"""Cut a chain of units into contiguous stages of a pipeline, exactly.

A step takes T = (m − 1) · max t_i + Σ t_i + Σ e_i + max o_i for m micro-batches: t_i seconds of stage i
per micro-batch, e_i of the transfers at cut i, o_i what stage i does once per step. Each stage must fit
into memory. Σ t_i is the same for all cuts, but for what the last stage is spared; what is left has two
maxima and a sum. For upper limits on both maxima the cheapest cuts are a dynamic program over
windows; best-first branch and bound over boxes of such limits finds the optimum.

Units of 3, 1, 2 and 2 s in two stages with 4 micro-batches and free transfers are cut in the middle:
4 s each, a step of 3·4 + 8 = 20 s. After the first unit it would be 3·5 + 8 = 23 s.

Source: AMP, supplement 6.4 (its dynamic program keeps one maximum; memory and o_i are added here).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.pipeline.pipeline_timeline import closed_form_s

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROUNDING = 1e-12  # relative to the whole; sums that differ by less are equal


@dataclass(frozen=True)
class UnitChain:
    """Units in the order in which the forward pass runs them.

    By unit: `seconds` of forward and backward of one micro-batch, `once_s` seconds once per step,
    `held_bytes` that are there all the time, `active_bytes` per micro-batch in flight. `transfer_s`
    has for each place between units the seconds per micro-batch, both directions, if the chain is
    cut there; infinity forbids it. `waiting_s` are more seconds of a micro-batch by unit, for what it
    takes that others come between its passes: in all stages but the last; by default none.
    """

    seconds: tuple[float, ...]
    once_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    held_bytes: tuple[int, ...]
    active_bytes: tuple[int, ...]
    waiting_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.seconds)
        if count == 0:
            raise AutoDDLError("chain without units; give at least one")
        if not self.waiting_s:
            object.__setattr__(self, "waiting_s", (0.0,) * count)
        for name in (f.name for f in fields(self)):
            values, between = tuple(getattr(self, name)), name == "transfer_s"
            object.__setattr__(self, name, values)
            wanted = count - between
            if len(values) != wanted:
                raise AutoDDLError(
                    f"chain of {count} units: {len(values)} {name}; give {wanted}, one per "
                    f"{'place between units' if between else 'unit'}"
                )
            whole = name.endswith("_bytes")
            for value in values:
                is_kind = not whole or isinstance(value, int | np.integer)
                if not (is_kind and value >= 0 and (between or value < np.inf)):
                    raise AutoDDLError(
                        f"chain: {value!r} in {name}; give "
                        f"{'whole numbers' if whole else 'numbers'} from 0 on"
                    )


@dataclass(frozen=True)
class Cut:
    """Stage i has the units from `bounds[i]` to before `bounds[i + 1]`, and its `memory_bytes`.

    `seconds` are those of a step.
    """

    bounds: tuple[int, ...]
    seconds: float
    memory_bytes: tuple[int, ...]


def strict_in_flight(stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return by stage how many micro-batches strict 1F1B keeps in flight at most."""
    return tuple(min(micro_batches, stages - stage) for stage in range(stages))


def cut(
    chain: UnitChain,
    stages: int,
    micro_batches: int,
    *,
    limit_bytes: int | None = None,
    in_flight: Sequence[int] | None = None,
    preferred: Collection[int] = (),
    tolerance: float = 1e-3,
) -> Cut:
    """Return the fastest cut; of those slower by at most `tolerance` one with more `preferred` places.

    Place p is before unit p, from 1 on. `in_flight` are micro-batches by stage, by default those of
    strict 1F1B. Preferred places are weighted by a penalty on all others, the greatest of a few (all
    others forbidden is the first) whose cut is within the tolerance, relative to the fastest.

    Raises:
        InfeasibleError: no cut fits; says the least limit with which one would.
    """
    if in_flight is None:
        in_flight = strict_in_flight(stages, micro_batches)
    _check(chain, stages, micro_batches, in_flight)
    bounds = _fastest(chain, micro_batches, in_flight, limit_bytes)
    if bounds is None:
        raise InfeasibleError(_why_not(chain, in_flight, limit_bytes))
    fastest = _cut(chain, bounds, micro_batches, in_flight)
    preferred = frozenset(preferred)
    if not preferred or preferred.issuperset(bounds[1:-1]):
        return fastest
    allowed_s = tolerance * fastest.seconds
    shares = [2**n for n in range(stages.bit_length()) if 2**n < stages - 1]
    # What costs one share of all cuts more than the fastest one is within the tolerance for sure.
    for penalty_s in (np.inf, *(allowed_s / share for share in (*shares, stages - 1))):
        transfer_s = tuple(
            seconds if place in preferred else seconds + penalty_s
            for place, seconds in enumerate(chain.transfer_s, start=1)
        )
        dearer = replace(chain, transfer_s=transfer_s)
        bounds = _fastest(dearer, micro_batches, in_flight, limit_bytes)
        if bounds is not None:
            found = _cut(chain, bounds, micro_batches, in_flight)
            if found.seconds <= fastest.seconds + allowed_s:
                return found
    return fastest


def _check(chain: UnitChain, stages: int, micro_batches: int, in_flight: Sequence[int]) -> None:
    if stages < 1 or micro_batches < 1:
        raise AutoDDLError(
            f"{stages} stages and {micro_batches} micro-batches; give at least one of each"
        )
    if len(in_flight) != stages or min(in_flight) < 1:
        raise AutoDDLError(
            f"in_flight is {tuple(in_flight)}; give a number from 1 on for each of {stages} stages"
        )
    if stages > len(chain.seconds):
        raise InfeasibleError(
            f"{stages} stages of {len(chain.seconds)} units; give at most as many stages as units"
        )


def _cut(
    chain: UnitChain, bounds: tuple[int, ...], micro_batches: int, in_flight: Sequence[int]
) -> Cut:
    spans = list(pairwise(bounds))
    stage_s = [float(sum(chain.seconds[a:b]) + sum(chain.waiting_s[a:b])) for a, b in spans[:-1]]
    stage_s.append(float(sum(chain.seconds[slice(*spans[-1])])))
    once_s = tuple(float(sum(chain.once_s[a:b])) for a, b in spans)
    transfer_s = [chain.transfer_s[b - 1] for b in bounds[1:-1]]
    memory = tuple(
        int(sum(chain.held_bytes[a:b]) + count * sum(chain.active_bytes[a:b]))
        for (a, b), count in zip(spans, in_flight, strict=True)
    )
    seconds = closed_form_s(stage_s, micro_batches, transfer_s=transfer_s, once_s=once_s)
    return Cut(bounds, seconds, memory)


def _why_not(chain: UnitChain, in_flight: Sequence[int], limit_bytes: int | None) -> str:
    """Say the least limit with which there is a cut; bisect over whole bytes."""
    what = f"{len(in_flight)} stages of {len(chain.seconds)} units"
    windows = _Windows(chain, in_flight)
    bounds = windows.cheapest(np.inf, np.inf)[1]
    if bounds is None or limit_bytes is None:
        return f"{what}: too few places may be cut; give fewer stages or allow more places"
    low, high = int(limit_bytes), max(_cut(chain, bounds, 1, in_flight).memory_bytes)
    while high - low > 1:
        middle = (low + high) // 2
        windows.limit(middle)
        bounds = windows.cheapest(np.inf, np.inf)[1]
        if bounds is None:
            low = middle
        else:
            high = max(_cut(chain, bounds, 1, in_flight).memory_bytes)
    return (
        f"{what} need at least {high} bytes on a device; the limit is {limit_bytes}; allow more, or "
        "take another number of stages or smaller micro-batches"
    )


class _Windows:
    """The cheapest cuts under limits on the stages' seconds, `once_s` and bytes."""

    def __init__(self, chain: UnitChain, in_flight: Sequence[int]) -> None:
        self.last_s, waiting_s, self.once_s = (
            np.cumsum((0.0, *values)) for values in (chain.seconds, chain.waiting_s, chain.once_s)
        )
        self.other_s = self.last_s + waiting_s
        transfer_s = np.array([np.inf, *chain.transfer_s, np.inf])
        # What it takes to begin a stage at a place, the last one with all that waits before it.
        self.begin_s = [transfer_s] * (len(in_flight) - 1) + [transfer_s + waiting_s]
        held, active = (0, *chain.held_bytes), (0, *chain.active_bytes)
        self.memory = [np.cumsum(held) + count * np.cumsum(active) for count in in_flight]
        self.ends = np.arange(len(self.last_s))
        self.fits = [np.zeros_like(self.ends)] * len(in_flight)

    def limit(self, limit_bytes: int) -> None:
        """Allow no stage more than that."""
        self.fits = [np.searchsorted(sums, sums - limit_bytes) for sums in self.memory]

    def cheapest(self, stage_s: float, once_s: float) -> tuple[float, tuple[int, ...] | None]:
        """Return the least sum, and the bounds, with max t_i ≤ `stage_s` and max o_i ≤ `once_s`.

        The sum is Σ e_i and the `waiting_s` of all stages but the last.
        """
        once = np.searchsorted(self.once_s, self.once_s - once_s)
        other, last = (
            np.maximum(once, np.searchsorted(sums, sums - stage_s))
            for sums in (self.other_s, self.last_s)
        )
        earliest = [other] * (len(self.fits) - 1) + [last]
        begins = [np.maximum(*pair) for pair in zip(earliest, self.fits, strict=True)]
        costs = [np.where((begins[0] == 0) & (self.ends > 0), 0.0, np.inf)]
        for begin, begin_s in zip(begins[1:], self.begin_s[1:], strict=True):
            costs.append(self._least(costs[-1] + begin_s, begin))
        if not np.isfinite(costs[-1][-1]):
            return np.inf, None
        bounds = [len(self.ends) - 1]
        for stage in range(len(costs) - 1, 0, -1):
            start, end = int(begins[stage][bounds[-1]]), bounds[-1]
            window = (costs[stage - 1] + self.begin_s[stage])[start:end]
            bounds.append(start + int(window.argmin()))
        return float(costs[-1][-1]), (0, *reversed(bounds))

    def _least(self, values: Floats, begin: Ints) -> Floats:
        """Return for every end j the least of values[begin[j]:j], infinity where that is empty."""
        windows = np.stack((begin, self.ends), axis=1).reshape(-1)
        least = np.minimum.reduceat(np.append(values, np.inf), windows)[::2]
        return np.where(begin < self.ends, least, np.inf)


def _fastest(
    chain: UnitChain, micro_batches: int, in_flight: Sequence[int], limit_bytes: int | None
) -> tuple[int, ...] | None:
    """Return the bounds of a fastest cut, None if there is none, by best-first branch and bound.

    A box has least and greatest max t_i and max o_i. Its greatest ones give the least Σ e_i of
    all cuts in it, its least ones the least of the rest.
    """
    windows, repeats = _Windows(chain, in_flight), micro_batches - 1
    if limit_bytes is not None:
        windows.limit(limit_bytes)
    least_t, least_o = (
        max(float(np.diff(sums).max()), sums[-1] / len(in_flight) * (1 - ROUNDING))
        for sums in (windows.last_s, windows.once_s)
    )
    same_t, same_o = (ROUNDING * sums[-1] for sums in (windows.other_s, windows.once_s))
    best_s, best = np.inf, None
    boxes = [(0.0, least_t, np.inf, least_o, np.inf, 0.0)]
    while boxes:
        bound_s, low_t, high_t, low_o, high_o, transfers_s = heappop(boxes)
        if bound_s >= best_s * (1 - ROUNDING):
            break
        if repeats:
            high_t = min(high_t, (best_s - transfers_s - low_o) / repeats)
        high_o = min(high_o, best_s - transfers_s - repeats * low_t)
        transfers_s, bounds = windows.cheapest(high_t, high_o)
        if bounds is None:
            continue
        at = np.array(bounds)
        stage_s = np.append(np.diff(windows.other_s[at[:-1]]), np.diff(windows.last_s[at[-2:]]))
        top_t = float(stage_s.max())
        top_o = float(np.diff(windows.once_s[at]).max())
        total_s = repeats * top_t + top_o + transfers_s
        if total_s < best_s:
            best_s, best = total_s, bounds
        # All others in this box have more transfers, so a lesser max t_i or max o_i.
        gap_t, gap_o = repeats * (top_t - low_t), top_o - low_o
        if gap_t >= gap_o:
            middle = (low_t + top_t) / 2
            parts = [
                (low_t, middle, low_o, high_o),
                (middle, top_t - same_t, low_o, high_o),
                (top_t, high_t, low_o, top_o - same_o),
            ]
        else:
            middle = (low_o + top_o) / 2
            parts = [
                (low_t, high_t, low_o, middle),
                (low_t, high_t, middle, top_o - same_o),
                (low_t, top_t - same_t, top_o, high_o),
            ]
        for a, b, c, d in parts:
            bound = repeats * a + c + transfers_s
            if a <= b and c <= d and bound < best_s * (1 - ROUNDING):
                heappush(boxes, (bound, a, b, c, d, transfers_s))
    return best
