"""α–β times of the collectives (AutoDDL table II): ring and pairwise forms, long messages.

The meaning of n differs between them: the full tensor of the group for an all-reduce, the gathered
tensor for an all-gather, the input tensor for a reduce-scatter, the local send buffer for an
all-to-all, and the message for a send with its receive.

An all-reduce of 8 MB over 4 devices with α = 10 µs and β = 0.1 ns/byte takes 2·3·α + 2·3/4·n·β: 60 µs
and 1.2 ms.
"""

from __future__ import annotations

from autoddl.errors import AutoDDLError
from autoddl.sbp import boxing
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

SEND_RECEIVE = "send_receive"
COLLECTIVES = (*boxing.COLLECTIVES, SEND_RECEIVE)

_ROUNDS = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1, ALL_TO_ALL: 1}


def coefficients(collective: str, group_size: int, size_bytes: float) -> tuple[float, float]:
    """Return (a, b) such that the collective takes a·α + b·β seconds.

    `size_bytes` is the n of the module docstring; a counts messages, b bytes sent per device. A
    send/receive is one message, however many devices pass theirs on at the same time.

    Raises:
        AutoDDLError: the collective is unknown.

    Source: AutoDDL table II.
    """
    if collective == SEND_RECEIVE:
        return (1.0, float(size_bytes)) if group_size > 1 else (0.0, 0.0)
    if collective not in _ROUNDS:
        raise AutoDDLError(f"collective: got {collective!r}; allowed are {', '.join(COLLECTIVES)}")
    rounds = _ROUNDS[collective] * (group_size - 1)
    return float(rounds), rounds / group_size * size_bytes


def seconds(
    collective: str, group_size: int, size_bytes: float, *, alpha_s: float, beta_s_per_byte: float
) -> float:
    """Return the time of one collective over `group_size` devices, in seconds."""
    messages, volume = coefficients(collective, group_size, size_bytes)
    return messages * alpha_s + volume * beta_s_per_byte
