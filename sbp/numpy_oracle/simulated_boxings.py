"""The NumPy oracle of boxings: each group of a collective with nothing but what its members hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autoddl.errors import AutoDDLError
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, boxing
from autoddl.sbp.mesh import rank_groups
from autoddl.sbp.numpy_oracle.simulated_tensors import REDUCE, Array, Locals
from autoddl.sbp.shards import pieces
from autoddl.sbp.shares import Cut, Cuts, places
from autoddl.sbp.state import NdSbp, Sbp


def run_boxing(
    locals_: Sequence[Array], src: NdSbp, dst: NdSbp, shape: Sequence[int], mesh: Cuts
) -> Locals:
    """Perform one boxing primitive, each group with nothing but what its members hold.

    Raises:
        AutoDDLError: no single primitive takes `src` to `dst`.
    """
    box = boxing(src, dst, shape, mesh, uneven=True)
    if box is None:
        raise AutoDDLError(
            f"boxing {src} to {dst} of shape {tuple(shape)} on mesh {tuple(mesh)}: no single "
            "primitive does it; go through a legal state in between"
        )
    result = list(locals_)
    before, after = src[box.axes[0]], dst[box.axes[0]]
    for group in rank_groups([*map(places, mesh)], box.axes):
        cut = mesh[box.axes[0]] if len(box.axes) == 1 else len(group)
        outcome = _exchange(box.primitive, [locals_[rank] for rank in group], before, after, cut)
        for rank, local in zip(group, outcome, strict=True):
            result[rank] = local
    return result


def run_path(
    locals_: Sequence[Array], src: NdSbp, path: Sequence[NdSbp], shape: Sequence[int], mesh: Cuts
) -> Locals:
    """Perform the boxings of a path one after the other, from `src` on.

    Raises:
        AutoDDLError: as `run_boxing`.
    """
    result, here = list(locals_), src
    for state in path:
        result, here = run_boxing(result, here, state, shape, mesh), state
    return result


def _exchange(primitive: str, members: Locals, before: Sbp, after: Sbp, cut: Cut) -> Locals:
    """Run a primitive in one group over an axis; `members` are in the order of the mesh axes."""
    size = len(members)
    if primitive == ALL_REDUCE:
        return [REDUCE[before.reduction](members)] * size
    if primitive == ALL_GATHER:
        return [joined(members, before, before.dim)] * size
    if primitive == REDUCE_SCATTER:
        return pieces(REDUCE[before.reduction](members), after, cut, after.dim)
    if primitive == ALL_TO_ALL:
        return _all_to_all(members, before, after, cut)
    if after.is_split:
        return [pieces(member, after, cut, after.dim)[k] for k, member in enumerate(members)]
    neutral = {"sum": 0.0, "max": -np.inf, "min": np.inf}[after.reduction]
    if before.kind == "B":
        return [m if k == 0 else np.full_like(m, neutral) for k, m in enumerate(members)]
    nothing = [np.full_like(member, neutral) for member in members]
    return [
        joined([*nothing[:k], member, *nothing[k + 1 :]], before, before.dim)
        for k, member in enumerate(members)
    ]


def _all_to_all(members: Locals, before: Sbp, after: Sbp, cut: Cut) -> Locals:
    """Send every member its piece of the own shard, and put what comes in together."""
    size = len(members)
    if before.dim != after.dim:
        sent = [pieces(member, after, cut, after.dim) for member in members]
        return [joined([row[k] for row in sent], before, before.dim) for k in range(size)]
    dim = before.dim
    length = sum(member.shape[dim] for member in members)
    held = pieces(np.arange(length), before, cut, 0)
    wanted = pieces(np.arange(length), after, cut, 0)
    received = []
    for indices in wanted:
        shape = (*members[0].shape[:dim], len(indices), *members[0].shape[dim + 1 :])
        local = np.empty(shape, members[0].dtype)
        for member, own in zip(members, held, strict=True):
            _, here, there = np.intersect1d(indices, own, return_indices=True)
            local[(slice(None),) * dim + (here,)] = member.take(there, axis=dim)
        received.append(local)
    return received


def joined(parts: Sequence[npt.NDArray[Any]], cut: Sbp, axis: int) -> npt.NDArray[Any]:
    """Return the array of which `parts` are the pieces; the inverse of `pieces`."""
    if cut.stride is None:
        return np.concatenate(parts, axis=axis)
    before, after = parts[0].shape[:axis], parts[0].shape[axis + 1 :]
    turns = [part.reshape(*before, -1, 1, cut.stride, *after) for part in parts]
    dealt: npt.NDArray[Any] = np.concatenate(turns, axis=axis + 1)
    return dealt.reshape(*before, -1, *after)
