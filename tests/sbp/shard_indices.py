"""Which elements a device holds, index by index: what shards and redistributions are held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoddl.sbp.program.columns import Ints
from autoddl.sbp.shards import check_state, pieces
from autoddl.sbp.state import NdSbp


def shard_indices(
    shape: Sequence[int], state: NdSbp, mesh: Sequence[int], coords: Sequence[int]
) -> tuple[Ints, ...]:
    """Return which elements the device at `coords` holds: for each dim its indices, in local order.

    `array[np.ix_(*indices)]` is the shard.

    Raises:
        AutoDDLError: the tensor can't be in that state.
    """
    check_state(state, shape, mesh)
    indices = [np.arange(size) for size in shape]
    for dim in range(len(shape)):
        for axis in state.cutting(dim):
            indices[dim] = pieces(indices[dim], state[axis], mesh[axis], axis=0)[coords[axis]]
    return tuple(indices)
