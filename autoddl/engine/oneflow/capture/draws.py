"""Values that a parameter is to have, drawn for any part of it: the same on every mesh.

A draw is what an initialiser said, and a key. Element i of a tensor depends on these and i alone: word i
of a Philox stream, a generator by counter, makes a number u between 0 and 1, of which the inverse of the
normal distribution is taken. So each rank draws its shard, and no rank the whole tensor.

Example: rows 2 and 3 of Draw("normal", (0.0, 1.0), key=(0, 3)) for 4 x 2 elements are the words 4 to 7.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011); the generator is NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

_WORDS = 4  # that a counter of Philox makes
_AT_ONCE = 1 << 18  # elements: what is drawn in doubles meanwhile is small beside a shard


@dataclass(frozen=True)
class Draw:
    """An initialiser: its kind, arguments, a factor of what it makes, and the key of its stream.

    "constant" has a value; "uniform" the bounds; "normal" mean and standard deviation; "clamped" these
    and the bounds to which values outside are moved.
    """

    kind: str
    arguments: tuple[float, ...]
    key: tuple[int, int]
    factor: float = 1.0


def values(draw: Draw, shape: Sequence[int], slices: Sequence[slice], dtype: Any) -> Any:
    """Return the part of a tensor of a shape that the slices, which have begins and ends, cut out."""
    counts = [s.stop - s.start for s in slices]
    found = np.empty(math.prod(counts), dtype=dtype)
    if draw.kind == "constant":
        found[:] = draw.arguments[0] * draw.factor
        return found.reshape(counts)
    done = 0
    for start, count in _runs(shape, slices):
        for begin in range(start, start + count, _AT_ONCE):
            size = min(_AT_ONCE, start + count - begin)
            found[done : done + size] = _distributed(draw, _uniform(draw.key, begin, size))
            done += size
    return found.reshape(counts)


def _runs(shape: Sequence[int], slices: Sequence[slice]) -> Iterator[tuple[int, int]]:
    """Yield where elements of a part lie in the whole: positions in order, and how many from there."""
    last = len(shape)  # behind this dim everything is whole
    while last > 0 and slices[last - 1] == slice(0, shape[last - 1]):
        last -= 1
    inner = math.prod(shape[last:])
    if last == 0:
        yield 0, inner
        return
    cut = slices[last - 1]
    strides = [math.prod(shape[dim + 1 :]) for dim in range(last)]
    for outer in np.ndindex(*(s.stop - s.start for s in slices[: last - 1])):
        at = sum(
            (s.start + i) * stride
            for s, i, stride in zip(slices[: last - 1], outer, strides, strict=False)
        )
        yield at + cut.start * inner, (cut.stop - cut.start) * inner


def _uniform(key: tuple[int, int], begin: int, count: int) -> npt.NDArray[np.float64]:
    """Return numbers `begin` to `begin + count` of a stream, between 0 and 1."""
    skipped = begin % _WORDS
    stream = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=begin // _WORDS)
    words = stream.random_raw(skipped + count)[skipped:]
    found: npt.NDArray[np.float64] = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    return found


def _distributed(draw: Draw, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if draw.kind == "uniform":
        low, high = draw.arguments
        return (low + (high - low) * uniform) * draw.factor
    mean, deviation, *bounds = draw.arguments
    found = mean + deviation * ndtri(uniform)
    if bounds:
        found = found.clip(bounds[0], bounds[1])
    return found * draw.factor
