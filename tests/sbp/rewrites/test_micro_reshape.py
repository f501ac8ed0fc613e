"""Cuts that a reshape moves, beside NumPy's reshape of the elements of one part."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoddl.sbp.rewrites.micro_reshape import reshaped
from autoddl.sbp.shards import pieces
from autoddl.sbp.state import S, Sbp

SHAPES = [
    (24,),
    (2, 12),
    (12, 2),
    (4, 6),
    (6, 4),
    (2, 3, 4),
    (4, 3, 2),
    (1, 24),
    (2, 1, 12),
    (3, 8),
]


def cuts(shape: tuple[int, ...], count: int) -> list[Sbp]:
    """Return the plain cut and the strided ones of every dim."""
    found = []
    for dim, size in enumerate(shape):
        if size % count == 0:
            strides = [n for n in range(1, size // count) if size % (count * n) == 0]
            found += [S(dim), *(S(dim, n) for n in strides)]
    return found


def held(shape: tuple[int, ...], cut: Sbp, count: int) -> list[list[int]]:
    """Return the flat numbers of the elements of every part."""
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return [part.ravel().tolist() for part in pieces(numbers, cut, count, cut.dim)]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("source", SHAPES, ids=str)
def test_parts_have_the_same_elements(source: tuple[int, ...], count: int) -> None:
    for target, cut in itertools.product(SHAPES, cuts(source, count)):
        same = [
            c for c in cuts(target, count) if held(target, c, count) == held(source, cut, count)
        ]
        found = reshaped(cut, source, target, count)
        assert ([] if found is None else [found]) == same, (source, target, cut)
