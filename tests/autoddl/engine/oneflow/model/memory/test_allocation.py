"""Where buffers lie in a block: against trying every place from the bottom up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoddl.engine.oneflow.model.memory.allocation import placed_bytes

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


def found(sizes: list[int], lives: list[Life], peak: int) -> int:
    begins, ends = np.array(lives, dtype=np.int64).reshape(-1, 2).T.copy()
    return placed_bytes(np.array(sizes, dtype=np.int64), begins, ends, peak)


@given(buffers(), st.integers(0, 30))
def test_every_buffer_lies_as_low_as_it_fits(
    drawn: tuple[list[int], list[Life]], peak: int
) -> None:
    assert found(*drawn, peak) == by_trying(*drawn)


@given(st.integers(0, 2**32 - 1), st.sampled_from([60, 700]), st.booleans())
def test_so_does_each_of_many(seed: int, steps: int, largest_first: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, rng.choice([2, 7]), 60)
    begins, spans = rng.integers(0, steps, 60), rng.choice([1, 16, 17, 300, steps], 60)
    ends = np.minimum(begins + rng.integers(spans), steps)
    if largest_first:  # as the engine places them
        sizes = -np.sort(-sizes)
    lives = list(zip(begins.tolist(), ends.tolist(), strict=True))
    for peak in (0, steps // 2, int(rng.integers(steps)), steps):
        assert found(sizes.tolist(), lives, peak) == by_trying(sizes.tolist(), lives)
