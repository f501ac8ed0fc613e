"""Message sizes as nccl-tests is told them: of -b 8 -e 128 -f 4 these are 8, 32 and 128 bytes."""

from __future__ import annotations

import math

from autoddl.errors import AutoDDLError

MOST_SIZES = 64  # nccl-tests prints as many from 1 B to 16 EiB with its factor of 2


def sizes_of(least: int, most: int, factor: float) -> tuple[int, ...]:
    """Return least, least·factor, … up to most, whole multiples of 4 bytes.

    Raises:
        AutoDDLError: there is no such sequence.
    """
    if not 4 <= least <= most:
        raise AutoDDLError(
            f"sizes: got {least} to {most} bytes (-b, -e); allowed are 4 and more, the first not "
            "above the second"
        )
    if not factor > 1:
        raise AutoDDLError(f"sizes: got a step factor (-f) of {factor:g}; allowed are more than 1")
    if math.log(most / least) > MOST_SIZES * math.log(factor):
        raise AutoDDLError(
            f"sizes: a step factor (-f) of {factor:.12g} makes more than {MOST_SIZES} sizes of {least} "
            f"to {most} bytes; allowed are factors from {(most / least) ** (1 / MOST_SIZES):.3g} on"
        )
    sizes = []
    size = float(least)
    while size <= most * (1 + 1e-9):
        sizes.append(int(size) // 4 * 4)
        size *= factor
    if len(set(sizes)) < 2:
        raise AutoDDLError(
            f"sizes: only {least} bytes (-b, -e, -f); two sizes and more tell α from β"
        )
    return tuple(dict.fromkeys(sizes))
