"""α–β times of the collectives: how many messages and bytes they send, by algorithm.

The meaning of n differs between them: the full tensor of the group for an all-reduce, the gathered
tensor for an all-gather, the input tensor for a reduce-scatter, the local send buffer for an
all-to-all, and the message for a broadcast and for a send with its receive.

A "ring" sends what AutoDDL's table II says (pairwise in an all-to-all). NCCL's other algorithms send as
many bytes in fewer messages: a "tree" of units (nodes) has twice as many as it is deep, up and down,
"nvls" one, to the switch that adds up.

A broadcast is a chain of its group, along which a message is passed on in pieces: to the last of m
members it takes m − 1 steps, and every link carries all of it, (m − 1)·α + n·β.

An all-reduce of 8 MB over 4 devices with α = 10 µs and β = 0.1 ns/byte takes 2·3·α + 2·3/4·n·β: 60 µs
and 1.2 ms; as a tree over 4 nodes 2·log2(4)·α, 40 µs, and 1.2 ms.
"""

from __future__ import annotations

import math

from autoddl.errors import AutoDDLError
from autoddl.sbp import boxing
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

SEND_RECEIVE, BROADCAST = "send_receive", "broadcast"
COLLECTIVES = (*boxing.COLLECTIVES, SEND_RECEIVE)
PRICED = (*COLLECTIVES, BROADCAST)  # what links are of; that last one only where cuts are by shares
RING, TREE, NVLS = "ring", "tree", "nvls"
ALGORITHMS = {  # and the collectives that they do
    RING: PRICED,
    TREE: (ALL_REDUCE,),
    NVLS: (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER),
}

_ROUNDS = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1, ALL_TO_ALL: 1}


def coefficients(
    collective: str, group_size: int, size_bytes: float, *, algorithm: str = RING, inner: int = 1
) -> tuple[float, float]:
    """Return (a, b) such that the collective takes a·α + b·β seconds.

    `size_bytes` is the n of the module docstring; a counts messages, b bytes sent per device. A
    send/receive is one message, however many devices pass theirs on at the same time. `inner` members
    lie in each unit of the level that the group crosses.

    Raises:
        AutoDDLError: the collective is unknown.

    Source: AutoDDL table II; the depth of a tree is that of NCCL's tuning model (src/graph/tuning.cc).
    """
    if collective == SEND_RECEIVE:
        return (1.0, float(size_bytes)) if group_size > 1 else (0.0, 0.0)
    if collective == BROADCAST:
        return float(group_size - 1), float(size_bytes)
    if collective not in _ROUNDS:
        raise AutoDDLError(f"collective: got {collective!r}; allowed are {', '.join(PRICED)}")
    rounds = _ROUNDS[collective] * (group_size - 1)
    messages = float(rounds)
    if algorithm == TREE:
        messages = 2 * math.log2(group_size / inner)
    elif algorithm == NVLS:
        messages = float(group_size > 1)
    return messages, rounds / group_size * size_bytes


def seconds(
    collective: str, group_size: int, size_bytes: float, *, alpha_s: float, beta_s_per_byte: float
) -> float:
    """Return the time of one collective over `group_size` devices in a ring, in seconds."""
    messages, volume = coefficients(collective, group_size, size_bytes)
    return messages * alpha_s + volume * beta_s_per_byte
