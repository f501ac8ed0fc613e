"""Cut a chain of units into contiguous stages of a pipeline, exactly.

A step takes T = (m − 1) · max t_i + Σ t_i + Σ e_i + max o_i for m micro-batches: t_i seconds of stage i
per micro-batch, e_i of the transfers at cut i, o_i what stage i does once per step. Each stage must fit
into memory. How the fastest cut is found is in placed_cut.py; this is the case of equal parts, with the
least memory that would do, and with places to cut that are preferred where cuts are about as fast.

Units of 3, 1, 2 and 2 s in two stages with 4 micro-batches and free transfers are cut in the middle:
4 s each, a step of 3·4 + 8 = 20 s. After the first unit it would be 3·5 + 8 = 23 s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel.pipeline.pipeline_timeline import closed_form_s
from autoddl.perfmodel.pipeline.placed_cut import NO_LIMIT, Chains, cheapest, equal_parts, place


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
    graph = equal_parts(in_flight)

    def needed(limit: int) -> int | None:
        """Return what the device that needs most takes under a limit, if there is a cut."""
        found = cheapest(_chains(chain, limit), graph, np.inf, np.inf)
        return None if found is None else max(_cut(chain, found.bounds, 1, in_flight).memory_bytes)

    high = needed(NO_LIMIT)
    if high is None or limit_bytes is None:
        return f"{what}: too few places may be cut; give fewer stages or allow more places"
    low = int(limit_bytes)
    while high - low > 1:
        middle = (low + high) // 2
        less = needed(middle)
        if less is None:
            low = middle
        else:
            high = less
    return (
        f"{what} need at least {high} bytes on a device; the limit is {limit_bytes}; allow more, or "
        "take another number of stages or smaller micro-batches"
    )


def _chains(chain: UnitChain, limit_bytes: int | None) -> Chains:
    """Return the sums that cuts of a chain into equal parts are found with."""
    last_s, waiting_s, once_s = (
        np.cumsum((0.0, *values))[None] for values in (chain.seconds, chain.waiting_s, chain.once_s)
    )
    held, active = (
        np.cumsum((0, *values), dtype=np.int64)[None]
        for values in (chain.held_bytes, chain.active_bytes)
    )
    limit = np.array([NO_LIMIT if limit_bytes is None else limit_bytes])
    between = np.array([[np.inf, *chain.transfer_s, np.inf]])
    return Chains(last_s + waiting_s, last_s, once_s, held, active, limit, between)


def _fastest(
    chain: UnitChain, micro_batches: int, in_flight: Sequence[int], limit_bytes: int | None
) -> tuple[int, ...] | None:
    """Return the bounds of a fastest cut, None if there is none."""
    found = place(_chains(chain, limit_bytes), equal_parts(in_flight), micro_batches)
    return None if found is None else found.bounds
