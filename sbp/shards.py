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
from autoddl.sbp.shares import Cut, Cuts, Shares, most, places, span, units
from autoddl.sbp.state import B, NdSbp, Sbp, axis_states, ordered, orders


def check_state(state: NdSbp, shape: Sequence[int], mesh: Cuts) -> None:
    """Raise AutoDDLError where a tensor of this logical shape can't be in a state, and say why.

    Plain splits may be uneven as long as every device gets an element; cuts by shares are exact.
    """
    fault = _fault(state, shape, mesh)
    if fault:
        where = f"state {state} of shape {tuple(shape)} on mesh {'x'.join(map(str, mesh))}"
        raise AutoDDLError(f"{where}: {fault}")


def _fault(state: NdSbp, shape: Sequence[int], mesh: Cuts) -> str:
    """Return why a tensor can't be in a state; "" where it can."""
    if len(state) != len(mesh):
        return f"{len(state)} entries for {len(mesh)} axes; give one per axis"
    sizes = list(shape)
    for sbp in state:
        if sbp.is_split and sbp.dim >= len(shape):
            dims = f"0..{len(shape) - 1}" if shape else "none, it is a scalar"
            return f"{sbp} cuts dim {sbp.dim}; the tensor's dims are {dims}"
    exact = {sbp.dim for sbp, cut in zip(state, mesh, strict=True) if isinstance(cut, Shares)}
    for axis in _cut_order(state):
        sbp, cut, left = state[axis], mesh[axis], sizes[state[axis].dim]
        size = units(cut)
        if sbp.dim in exact and (left % size or sbp.stride is not None):
            return (
                f"{sbp} cuts {left} elements into {size} units, beside shares; choose a dim "
                f"that {size} divides, or shares of another sum, without a stride"
            )
        if sbp.stride is not None and left % (size * sbp.stride):
            return (
                f"{sbp} deals {left} elements to {size} devices in turns of {sbp.stride}; "
                f"the stride must divide {left / size:g}"
            )
        if left < size:
            return f"{sbp} cuts {left} elements into {size} pieces; choose a longer dim"
        sizes[sbp.dim] = left // size
    return ""


def _cut_order(state: Sequence[Sbp]) -> list[int]:
    """Return the axes that cut, earlier turns first."""
    return sorted(
        (i for i, s in enumerate(state) if s.kind == "S"), key=lambda i: (state[i].turn, i)
    )


def local_shape(shape: Sequence[int], state: Iterable[Sbp], mesh: Cuts) -> tuple[int, ...] | None:
    """Return the shape that each device holds, or None where a dim is not cut evenly.

    `shape` is the logical shape, `mesh` how its axes cut. A split beyond the rank gives None as well.
    With shares it is the shape of the largest shard; of one place ask with its portions
    (`Mesh.portion`).
    """
    return _local_shape(tuple(shape), tuple(state), tuple(mesh))


# A planner asks for the same few of a model's layers a hundred times.
@lru_cache(maxsize=1 << 16)
def _local_shape(
    shape: tuple[int, ...], state: tuple[Sbp, ...], mesh: tuple[Cut, ...]
) -> tuple[int, ...] | None:
    dims = list(shape)
    cuts = [cut for cut in zip(state, mesh, strict=True) if cut[0].kind == "S"]
    if len(cuts) > 1:
        cuts.sort(key=_turn)
    for sbp, cut in cuts:
        dim, size = sbp.dim, cut if isinstance(cut, int) else cut.total
        if dim >= len(dims) or dims[dim] % (size * (sbp.stride or 1)) or dims[dim] < size:
            return None
        dims[dim] //= size
    # Shares have no common divisor, so all places are cut evenly if what is one unit of all axes is.
    for sbp, cut in cuts:
        if not isinstance(cut, int):
            if sbp.stride is not None:
                return None
            dims[sbp.dim] *= most(cut)
    return tuple(dims)


def local_bytes(tensor: Tensor, state: Sequence[Sbp], mesh: Cuts) -> int:
    """Return the bytes of `tensor` on each device of a mesh that is cut so; as `local_shape`."""
    shape = local_shape(tensor.shape, state, mesh)
    total = tensor.item_bytes
    for dim in shape if shape is not None else tensor.shape:
        total *= dim
    return total


def _turn(cut: tuple[Sbp, Cut]) -> int:
    return cut[0].turn


def shard_shape(
    shape: Sequence[int], state: NdSbp, mesh: Cuts, coords: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape that the device at `coords` holds; uneven splits give the first ones more."""
    dims = list(shape)
    for axis in _cut_order(state):
        dim, cut = state[axis].dim, mesh[axis]
        each, more = divmod(dims[dim], units(cut))
        dims[dim] = each * span(cut, coords[axis])[1] + (coords[axis] < more)
    return tuple(dims)


def pieces(array: npt.NDArray[Any], cut: Sbp, size: Cut, axis: int) -> list[npt.NDArray[Any]]:
    """Return what each place of a mesh axis gets of an array that is cut along `axis` as `cut` says."""
    if isinstance(size, Shares):
        each = array.shape[axis] // size.total
        return np.split(array, [each * start for start in size.starts[1:]], axis=axis)
    size = places(size)
    if cut.stride is None:
        return np.array_split(array, size, axis=axis)
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    turns = array.reshape(*before, -1, size, cut.stride, *after)
    return [turns.take(k, axis=axis + 1).reshape(*before, -1, *after) for k in range(size)]


def shard_slices(
    shape: Sequence[int], state: NdSbp, mesh: Cuts, coords: Sequence[int]
) -> tuple[slice, ...]:
    """Return which part of the logical tensor the device at `coords` holds, one slice per dim.

    Raises:
        AutoDDLError: the state does not cut the shape evenly, or in strides.
    """
    start, dims = [0] * len(shape), list(shape)
    even = local_shape(shape, state, mesh) is not None
    for axis in _cut_order(state):
        dim, size = state[axis].dim, units(mesh[axis])
        if not even or state[axis].stride is not None:
            raise AutoDDLError(
                f"state ({', '.join(map(str, state))}) does not cut shape {tuple(shape)} "
                f"evenly into slices on mesh {tuple(mesh)}: choose sizes that divide, or another state"
            )
        first, count = span(mesh[axis], coords[axis])
        start[dim] += first * (dims[dim] // size)
        dims[dim] = dims[dim] // size * count
    return tuple(slice(a, a + n) for a, n in zip(start, dims, strict=True))


def all_states(
    shape: Sequence[int],
    mesh: Cuts,
    *,
    partial: bool = True,
    own: bool = False,
    any_order: bool = False,
) -> Iterator[NdSbp]:
    """Yield every plain state that cuts `shape` evenly on a mesh with these cuts.

    Plain: no strides, P(sum) only, and the mesh's order unless `any_order`, which gives every order
    in which the axes may cut; axes of one device are B. `own` as in `axis_states`.
    """
    states = axis_states(len(shape), partial=partial, own=own)
    options = [states if places(cut) > 1 else (B,) for cut in mesh]
    every = orders(mesh) if any_order else ()
    for combo in itertools.product(*options):
        if local_shape(shape, combo, mesh) is None:
            continue
        cuts = [s.dim for s in combo if s.is_split]
        if any_order and len(set(cuts)) < len(cuts):
            yield from dict.fromkeys(ordered(combo, order) for order in every)
        else:
            yield NdSbp(combo)
