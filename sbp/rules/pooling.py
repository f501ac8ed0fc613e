"""Max poolings and their gradients: cut batch and channels.

The ops also return where each maximum lies, counted over the whole plane, so space stays whole even
where windows don't overlap. A gradient knows these places, so its windows may be cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from autoddl.sbp.rules.maps import elements
from autoddl.sbp.rules.registry import Array, IndexMap, LocalOp, OpRule, OpView, linear, register
from autoddl.sbp.rules.windows import (
    Windows,
    channels_first,
    channels_last,
    image_dims,
    last,
    space_of,
)


def _channel(view: OpView) -> str:
    """Return the name of the channels; the engine cuts those that come first only."""
    return "z" if channels_last(view) else "c"


def _map(view: OpView) -> IndexMap:
    space = (None,) * len(space_of(view, view.outputs[0]))
    return IndexMap(
        dict.fromkeys(view.inputs + view.outputs, image_dims(view, _channel(view), space))
    )


def _grad_map(view: OpView) -> IndexMap:
    """Map a gradient, a sum over the windows o0, o1, … of what each adds at one place."""
    plane = _map(view).dims
    windows = tuple(f"o{i}" for i in range(len(space_of(view, "dy_0"))))
    dims = dict.fromkeys(view.inputs, image_dims(view, _channel(view), windows))
    return IndexMap(
        {**dims, "x_0": plane["x_0"], "dx_0": plane["dx_0"]},
        summed=frozenset(windows),
        linear=(linear("dy_0"),),
        shape_only=frozenset({"x_0"}),
    )


def _max_pool(op: LocalOp) -> dict[str, Array]:
    """Return maxima and their flat positions in the unpadded plane; the first of equals wins."""
    x, shape = op.inputs["x_0"], op.view.shape["y_0"]
    windows = Windows.of_pool(op.view)
    image = windows.pad(x, shape[2:], -np.inf)
    position = _plane_positions(windows, x.shape[2:], image.shape[2:])
    y, indice = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64)
    for _, pixels in windows.positions(shape[2:]):
        met = image[last(pixels)]
        larger = met > y
        y = np.where(larger, met, y)
        indice = np.where(larger, position[pixels], indice)
    return {"y_0": y, "indice_0": indice}


def _plane_positions(windows: Windows, sizes: tuple[int, ...], padded: tuple[int, ...]) -> Array:
    """Return the flat position in a plane of `sizes` of every padded pixel."""
    position = np.zeros(padded, dtype=np.int64)
    for i, (before, size) in enumerate(zip(windows.padding, padded, strict=True)):
        along = (np.arange(size) - before) * math.prod(sizes[i + 1 :])
        position += along.reshape(-1, *(1,) * (len(padded) - i - 1))
    return position


def _adaptive_max_pool(op: LocalOp) -> dict[str, Array]:
    x, shape = op.inputs["x_0"], op.view.shape["y_0"]
    y, index = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    flat = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    for where in itertools.product(*map(range, shape[2:])):
        place = tuple(
            slice(i * size // count, -(-(i + 1) * size // count))
            for i, size, count in zip(where, x.shape[2:], shape[2:], strict=True)
        )
        window = x[last(place)].reshape(*shape[:2], -1)
        y[last(where)] = window.max(axis=-1)
        index[last(where)] = flat[place].ravel()[window.argmax(axis=-1)]
    return {"y_0": y, "index_0": index}


def _max_pool_grad(positions: str) -> Callable[[LocalOp], dict[str, Array]]:
    def reference(op: LocalOp) -> dict[str, Array]:
        shape = op.view.shape["dx_0"]
        dx = np.zeros((shape[0] * shape[1], math.prod(shape[2:])))
        planes = np.arange(dx.shape[0])[:, None]
        where, dy = (op.inputs[name].reshape(dx.shape[0], -1) for name in (positions, "dy_0"))
        np.add.at(dx, (planes, where), dy)
        return {"dx_0": dx.reshape(shape)}

    return reference


def _pixel(view: OpView, operand: str, rng: np.random.Generator) -> Array:
    """Draw flat positions in the plane of x."""
    return rng.integers(0, math.prod(space_of(view, "x_0")), view.shape[operand])


def _window_flops(view: OpView) -> float:
    return elements((*view.shape["y_0"], *view.attr["kernel_size"]))


def _grad_rule(op_type: str, positions: str) -> OpRule:
    return OpRule(
        op_type,
        _grad_map,
        channels_first(_max_pool_grad(positions)),
        lambda view: elements(view.shape["dy_0"]),
        family="reduction",
        samplers={positions: _pixel},
    )


for _d in (1, 2, 3):
    register(
        OpRule(
            f"max_pool_{_d}d", _map, channels_first(_max_pool), _window_flops, family="reduction"
        ),
        _grad_rule(f"max_pool_{_d}d_grad", "indice_0"),
        OpRule(
            f"adaptive_max_pool{_d}d",
            _map,
            channels_first(_adaptive_max_pool),
            lambda view: elements(view.shape["x_0"]),
            family="reduction",
        ),
        _grad_rule(f"adaptive_max_pool{_d}d_grad", "index_0"),
    )
