"""Which part of a tensor each rank has, and what goes from rank to rank where that changes.

A box is a start and a stop for each dim. Of 8 rows by the shares 3/1 rank 1 has the box ((6, 8),); where
they are gathered it gives all that it has to rank 0, which puts it behind its own:

    Delivery(sender=1, receiver=0, taken=((0, 2),), put=((6, 8),))
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from autoddl.sbp.boxing import COLLECTIVES, Boxing
from autoddl.sbp.mesh import rank_groups
from autoddl.sbp.shards import shard_slices
from autoddl.sbp.shares import Cut, places
from autoddl.sbp.state import NdSbp

Box = tuple[tuple[int, int], ...]


class Delivery(NamedTuple):
    """What one rank gives to another, or keeps: `taken` of its own shard, `put` into the receiver's."""

    sender: int
    receiver: int
    taken: Box
    put: Box


@lru_cache(maxsize=1 << 14)
def boxes(shape: tuple[int, ...], state: NdSbp, cuts: tuple[Cut, ...]) -> tuple[Box, ...]:
    """Return by rank which part of a tensor of this logical shape it has; of P the whole.

    Raises:
        AutoDDLError: the state does not cut the shape evenly, or in strides.
    """
    every = itertools.product(*(range(places(cut)) for cut in cuts))
    found = (shard_slices(shape, state, cuts, coords) for coords in every)
    return tuple(tuple((part.start, part.stop) for part in slices) for slices in found)


def extents(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(stop - start for start, stop in box)


def starts(box: Box) -> tuple[int, ...]:
    """Return where a box begins."""
    return tuple(start for start, _ in box)


@lru_cache(maxsize=1 << 14)
def deliveries(
    shape: tuple[int, ...], before: NdSbp, after: NdSbp, cuts: tuple[Cut, ...], step: Boxing
) -> tuple[Delivery, ...]:
    """Return what each rank gets in a boxing, receiver by receiver, and of whom.

    Where several senders give the same element it is reduced; elements that nobody gives are what adds
    nothing. Each element of a cut that is gathered has one sender.

    Raises:
        AutoDDLError: as boxes.
    """
    have, want = boxes(shape, before, cuts), boxes(shape, after, cuts)
    first, found = step.axes[0], list[Delivery]()
    for group in rank_groups([*map(places, cuts)], step.axes):
        for receiver in group:
            senders = group if step.primitive in COLLECTIVES else (receiver,)
            if before[first].kind == "B" and after[first].is_partial:
                senders = group[:1] if receiver == group[0] else ()
            for sender in senders:
                both = _common(have[sender], want[receiver])
                if both is not None:
                    taken, put = _inside(both, have[sender]), _inside(both, want[receiver])
                    found.append(Delivery(sender, receiver, taken, put))
    return tuple(sorted(found, key=lambda each: (each.receiver, each.sender)))


def _common(one: Box, other: Box) -> Box | None:
    """Return what is in both boxes, None where they have no element in common."""
    pairs = zip(one, other, strict=True)
    both = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs)
    return both if all(start < stop for start, stop in both) else None


def _inside(box: Box, shard: Box) -> Box:
    """Return a box as the rank counts that has the shard."""
    pairs = zip(box, shard, strict=True)
    return tuple((start - begin, stop - begin) for (start, stop), (begin, _) in pairs)
