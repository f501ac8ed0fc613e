"""What each device holds of a tensor: local shapes, index sets, and the pieces of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.sbp.program.ops_and_tensors import Tensor
from autoddl.sbp.state import B, NdSbp, Sbp, axis_states, ordered, orders


def check_state(state: NdSbp, shape: Sequence[int], mesh: Sequence[int]) -> None:
    """Raise AutoDDLError where a tensor of this logical shape can't be in a state, and say why.

    Plain splits may be uneven as long as every device gets an element.
    """
    where = f"state {state} of shape {tuple(shape)} on mesh {'x'.join(map(str, mesh))}"
    if len(state) != len(mesh):
        raise AutoDDLError(f"{where}: {len(state)} entries for {len(mesh)} axes; give one per axis")
    sizes = list(shape)
    for sbp in state:
        if sbp.is_split and sbp.dim >= len(shape):
            dims = f"0..{len(shape) - 1}" if shape else "none, it is a scalar"
            raise AutoDDLError(f"{where}: {sbp} cuts dim {sbp.dim}; the tensor's dims are {dims}")
    for axis in _cut_order(state):
        sbp, size, left = state[axis], mesh[axis], sizes[state[axis].dim]
        if sbp.stride is not None and left % (size * sbp.stride):
            raise AutoDDLError(
                f"{where}: {sbp} deals {left} elements to {size} devices in turns of {sbp.stride}; "
                f"the stride must divide {left / size:g}"
            )
        if left < size:
            raise AutoDDLError(
                f"{where}: {sbp} cuts {left} elements into {size} pieces; choose a longer dim"
            )
        sizes[sbp.dim] = left // size


def _cut_order(state: Sequence[Sbp]) -> list[int]:
    """Return the axes that cut, earlier turns first."""
    return sorted(
        (i for i, s in enumerate(state) if s.kind == "S"), key=lambda i: (state[i].turn, i)
    )


def local_shape(
    shape: Sequence[int], state: Iterable[Sbp], mesh: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the shape that each device holds, or None where a dim is not cut evenly.

    `shape` is the logical shape, `mesh` the axis sizes. A split beyond the rank gives None as well.
    """
    return _local_shape(tuple(shape), tuple(state), tuple(mesh))


# A planner asks for the same few of a model's layers a hundred times.
@lru_cache(maxsize=1 << 16)
def _local_shape(
    shape: tuple[int, ...], state: tuple[Sbp, ...], mesh: tuple[int, ...]
) -> tuple[int, ...] | None:
    dims = list(shape)
    cuts = list(zip(state, mesh, strict=True))
    for sbp, size in sorted(cuts, key=_turn) if any(s.turn for s, _ in cuts) else cuts:
        if sbp.kind == "S":
            dim = sbp.dim
            if dim >= len(dims) or dims[dim] % (size * (sbp.stride or 1)) or dims[dim] < size:
                return None
            dims[dim] //= size
    return tuple(dims)


def local_bytes(tensor: Tensor, state: Sequence[Sbp], mesh: Sequence[int]) -> int:
    """Return the bytes of `tensor` on each device of a mesh with these axis sizes."""
    shape = local_shape(tensor.shape, state, mesh)
    total = tensor.item_bytes
    for dim in shape if shape is not None else tensor.shape:
        total *= dim
    return total


def _turn(cut: tuple[Sbp, int]) -> int:
    return cut[0].turn


def shard_shape(
    shape: Sequence[int], state: NdSbp, mesh: Sequence[int], coords: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape that the device at `coords` holds; uneven splits give the first ones more."""
    dims = list(shape)
    for axis in _cut_order(state):
        dim, (each, more) = state[axis].dim, divmod(dims[state[axis].dim], mesh[axis])
        dims[dim] = each + (coords[axis] < more)
    return tuple(dims)


def pieces(array: npt.NDArray[Any], cut: Sbp, size: int, axis: int) -> list[npt.NDArray[Any]]:
    """Return what each of `size` devices gets of an array that is cut along `axis` as `cut` says."""
    if cut.stride is None:
        return np.array_split(array, size, axis=axis)
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    turns = array.reshape(*before, -1, size, cut.stride, *after)
    return [turns.take(k, axis=axis + 1).reshape(*before, -1, *after) for k in range(size)]


def shard_slices(
    shape: Sequence[int], state: NdSbp, mesh: Sequence[int], coords: Sequence[int]
) -> tuple[slice, ...]:
    """Return which part of the logical tensor the device at `coords` holds, one slice per dim.

    Raises:
        AutoDDLError: the state does not cut the shape evenly, or in strides.
    """
    start, dims = [0] * len(shape), list(shape)
    for axis in _cut_order(state):
        dim, size = state[axis].dim, mesh[axis]
        if dim >= len(dims) or dims[dim] % size or state[axis].stride is not None:
            raise AutoDDLError(
                f"state ({', '.join(map(str, state))}) does not cut shape {tuple(shape)} "
                f"evenly into slices on mesh {tuple(mesh)}: choose sizes that divide, or another state"
            )
        dims[dim] //= size
        start[dim] += coords[axis] * dims[dim]
    return tuple(slice(a, a + n) for a, n in zip(start, dims, strict=True))


def all_states(
    shape: Sequence[int],
    mesh: Sequence[int],
    *,
    partial: bool = True,
    own: bool = False,
    any_order: bool = False,
) -> Iterator[NdSbp]:
    """Yield every plain state that cuts `shape` evenly on a mesh with these axis sizes.

    Plain: no strides, P(sum) only, and the mesh's order unless `any_order`, which gives every order
    in which the axes may cut; axes of one device are B. `own` as in `axis_states`.
    """
    states = axis_states(len(shape), partial=partial, own=own)
    options = [states if size > 1 else (B,) for size in mesh]
    for combo in itertools.product(*options):
        if local_shape(shape, combo, mesh) is None:
            continue
        cuts = [s.dim for s in combo if s.is_split]
        if any_order and len(set(cuts)) < len(cuts):
            yield from dict.fromkeys(ordered(combo, order) for order in orders(mesh))
        else:
            yield NdSbp(combo)
