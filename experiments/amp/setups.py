"""AMP's clusters and its GPT, as far as the paper and its public code tell of them.

Four nodes of four devices; links in Gbit/s inside and out of a node: T4 50 and 50, V100 170 and 10. A
whole GPT takes 0.409 s per sample on a T4 and 0.294 s on a V100, forward and backward; layers share that
by their flops. Units 3 to 26 of its 30 are blocks, unit 0 looks words up, unit 28 is the head.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.5; seconds are worked out from its tables 6 to 9.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.search.amp.estimate import LayerChain, UnlikeNodes

GBIT = 1e9 / 8
BATCH = 32
UNITS, BLOCKS, LOOK_UP, HEAD = 30, range(3, 27), 0, 28
WIDTH, LENGTH, VOCABULARY = 1024, 1024, 52256
WHOLE_S = {"t4": 0.409, "v100": 0.294}
_INSIDE = {"t4": 50 * GBIT, "v100": 170 * GBIT}
_OUTSIDE = {"t4": 50 * GBIT, "v100": 10 * GBIT}


def _nodes(*kinds: str) -> UnlikeNodes:
    return UnlikeNodes(kinds, 4, _INSIDE, _OUTSIDE)


CLUSTERS: Mapping[str, UnlikeNodes] = {
    "homogeneous": _nodes("t4", "t4", "t4", "t4"),
    "mixed": _nodes("v100", "v100", "v100", "t4"),
}


def gpt() -> LayerChain:
    """Return the 24-layer GPT of tables 6 to 9: 355.5 million parameters."""
    flops = [0.0] * UNITS  # per token, of the products; the factor of backward is the same for all
    parameters = [0.0] * UNITS
    for unit in BLOCKS:
        flops[unit] = 24 * WIDTH**2 + 4 * LENGTH * WIDTH
        parameters[unit] = 12 * WIDTH**2
    flops[HEAD] = 2 * WIDTH * VOCABULARY
    parameters[LOOK_UP] = VOCABULARY * WIDTH
    whole = sum(flops)
    tokens = float(WIDTH * LENGTH)  # elements of a sample between units
    return LayerChain(
        {kind: tuple(s * f / whole for f in flops) for kind, s in WHOLE_S.items()},
        tuple(parameters),
        passed=(tokens,) * UNITS,
        reduced=tuple(4 * tokens if unit in BLOCKS else 0.0 for unit in range(UNITS)),
    )
