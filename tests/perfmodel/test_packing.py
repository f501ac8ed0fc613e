"""Where buffers lie in a block: against trying every place from the bottom up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoddl.perfmodel.packing import placed_bytes

Life = tuple[int, int]


def by_trying(sizes: list[int], lives: list[Life]) -> int:
    """Put every buffer into the lowest bytes that are free while it lives; return all bytes."""
    taken: list[tuple[range, Life]] = []
    for size, (begin, end) in zip(sizes, lives, strict=True):
        met = [bytes_ for bytes_, (first, last) in taken if first <= end and begin <= last]
        offset = 0
        while any(b.start < offset + size and offset < b.stop for b in met):
            offset += 1
        taken.append((range(offset, offset + size), (begin, end)))
    return max((b.stop for b, _ in taken), default=0)


@st.composite
def buffers(draw: st.DrawFn) -> tuple[list[int], list[Life]]:
    unit = draw(st.sampled_from([1, 3]))
    sizes = draw(st.lists(st.integers(1, 9).map(lambda n: n * unit), max_size=12))
    begins = [draw(st.integers(0, 12)) for _ in sizes]
    spans = st.integers(0, 6) | st.sampled_from([15, 16, 40])
    return sizes, [(begin, begin + draw(spans)) for begin in begins]


@given(buffers(), st.integers(0, 30), st.sampled_from([0, 2, 512]))
def test_every_buffer_lies_as_low_as_it_fits(
    found: tuple[list[int], list[Life]], peak: int, waiting: int
) -> None:
    sizes, lives = found
    begins, ends = np.array(lives, dtype=np.int64).reshape(-1, 2).T.copy()
    placed = placed_bytes(np.array(sizes, dtype=np.int64), begins, ends, peak, waiting)
    assert placed == by_trying(sizes, lives)
