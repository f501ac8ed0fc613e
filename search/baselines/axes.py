"""States by what they are on some axes of a mesh and on the others: how experts cut by hand."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from autoddl.sbp.shards import local_shape
from autoddl.sbp.shares import Cut, Cuts, places
from autoddl.sbp.state import B, NdSbp, P, S, Sbp

Axes = tuple[int, ...]


class OneAxis(NamedTuple):
    """The states, on one axis, in which a layer computes Y = X W, dX = dY Wᵀ and dW = Xᵀ dY."""

    x: Sbp
    weight: Sbp
    y: Sbp
    dy: Sbp
    dx: Sbp
    dweight: Sbp


class LayerStates(NamedTuple):
    """The same on a mesh."""

    x: NdSbp
    weight: NdSbp
    y: NdSbp
    dy: NdSbp
    dx: NdSbp
    dweight: NdSbp


def batch(dim: int = 0) -> OneAxis:
    """Return data parallelism: the batch is dim `dim` of the activations."""
    return OneAxis(x=S(dim), weight=B, y=S(dim), dy=S(dim), dx=S(dim), dweight=P)


def columns(out: int, features: int) -> OneAxis:
    """Return a layer whose weight is cut along its outputs `out`: so are the features of Y."""
    return OneAxis(x=B, weight=S(out), y=S(features), dy=S(features), dx=P, dweight=S(out))


def rows(fan_in: int, features: int) -> OneAxis:
    """Return a layer whose weight is cut along its inputs `fan_in`, and X in its features."""
    return OneAxis(x=S(features), weight=S(fan_in), y=P, dy=B, dx=S(features), dweight=S(fan_in))


def live(mesh: Cuts) -> Axes:
    """Return the axes of more than one device."""
    return tuple(axis for axis, cut in enumerate(mesh) if places(cut) > 1)


def subsets(axes: Axes, most: int) -> list[Axes]:
    """Return all choices of one to `most` axes."""
    counts = range(1, most + 1)
    return [some for count in counts for some in itertools.combinations(axes, count)]


@lru_cache(maxsize=1 << 12)
def state(mesh: tuple[Cut, ...], axes: Axes, on: Sbp, off: Sbp) -> NdSbp:
    """Return the state that is `on` on some axes and `off` on the others, B on those of one device."""
    return NdSbp(
        B if places(cut) == 1 else on if axis in axes else off for axis, cut in enumerate(mesh)
    )


@lru_cache(maxsize=1 << 12)
def layer_states(mesh: tuple[Cut, ...], axes: Axes, on: OneAxis, off: OneAxis) -> LayerStates:
    """Return the states of a layer by what they are on some axes and on the others."""
    return LayerStates(*[state(mesh, axes, *pair) for pair in zip(on, off, strict=True)])


@lru_cache(maxsize=1 << 12)
def even(shape: tuple[int, ...], wish: NdSbp, mesh: tuple[Cut, ...]) -> NdSbp:
    """Return the wished state, B on inner axes that would cut unevenly."""
    for axis in reversed(range(len(mesh))):
        if local_shape(shape, wish, mesh) is not None:
            break
        wish = wish.replace(axis, B)
    return wish
