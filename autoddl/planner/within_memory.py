"""Find again, under ever tighter bounds, until the whole memory fits.

Searches and cuts are bounded by a part of the memory that can be summed up. What they find may need more
in whole: then they are repeated with less for that part.

    limit 10 B; found under 10 B: needs 12 → under 10 · 10 / 12 = 8 B: needs 9, which fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

Bound = TypeVar("Bound")
Found = TypeVar("Found")


def until_it_fits(
    bound: Bound,
    find: Callable[[Bound], Found | None],
    tighter: Callable[[Bound, Found], Bound | None],
    rounds: int,
) -> Iterator[Found]:
    """Yield what is found, first under `bound`, until it fits, nothing is found, or all rounds are over.

    `tighter` returns the next bound after what was found under one; None if that fits, or if there is
    no tighter one.
    """
    for _ in range(rounds):
        found = find(bound)
        if found is None:
            return
        yield found
        after = tighter(bound, found)
        if after is None:
            return
        bound = after
