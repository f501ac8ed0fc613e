"""α–β times of the collectives (AutoDDL table II): ring and pairwise forms, long messages.

The meaning of n differs between them: the full tensor of the group for an all-reduce, the gathered
tensor for an all-gather, the input tensor for a reduce-scatter, and the local send buffer for an
all-to-all.
"""

from __future__ import annotations

from autoddl.errors import AutoDDLError
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COLLECTIVES, REDUCE_SCATTER

_ROUNDS = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1, ALL_TO_ALL: 1}


def coefficients(collective: str, group_size: int, size_bytes: float) -> tuple[float, float]:
    """Return (a, b) such that the collective takes a·α + b·β seconds.

    `size_bytes` is the n of the module docstring; a counts messages, b bytes sent per device.

    Raises:
        AutoDDLError: the collective is unknown.

    Source: AutoDDL table II.
    """
    if collective not in COLLECTIVES:
        raise AutoDDLError(f"collective: got {collective!r}; allowed are {', '.join(COLLECTIVES)}")
    rounds = _ROUNDS[collective] * (group_size - 1)
    return float(rounds), rounds / group_size * size_bytes


def seconds(
    collective: str, group_size: int, size_bytes: float, *, alpha_s: float, beta_s_per_byte: float
) -> float:
    """Return the time of one collective over `group_size` devices, in seconds."""
    messages, volume = coefficients(collective, group_size, size_bytes)
    return messages * alpha_s + volume * beta_s_per_byte
