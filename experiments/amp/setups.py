"""AMP's clusters and models, as far as the paper and its public code tell of them.

Four nodes of four devices; links in Gbit/s inside and out of a node: T4 50 and 50, V100 170 and 10.

A whole GPT takes 0.409 s per sample on a T4 and 0.294 s on a V100, forward and backward; layers share
that by their flops. Units 2 to 25 of its 30, counted from 0, are blocks (Megatron's cut [0, 14, 30] has
12 on each side), unit 0 looks words up, unit 28 is the head.

TransGAN's generator takes 0.226 s on a V100. Units 3 to 14 of its 56 are blocks of width 1024 on 9²
tokens, 41 to 52 blocks of width 16 on 288² tokens in windows of 18²; unit 0 makes the tokens, 16 to 40
upsample them. Flops do not tell seconds here: those of a wide and a narrow block are as 0.93 to 1, the
times that the public code has of them as 0.51 to 1, at 1.0 and 0.6 Tflop/s where the GPT has 8.5. So wide
blocks, narrow ones and all else have those times, three times the forward pass as everywhere in AMP.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.5; seconds are worked out from its tables 6 to 9 and
from its public code (`known_cost`).
"""

from __future__ import annotations

from autoddl.search.rivals.amp.estimate import LayerChain, UnlikeNodes

GBIT = 1e9 / 8
BATCH = 32
UNITS, BLOCKS, LOOK_UP, HEAD = 30, range(2, 26), 0, 28
WIDTH, LENGTH, VOCABULARY = 1024, 1024, 52256
WHOLE_S = {"t4": 0.409, "v100": 0.294}
# Of these the public code has for looking words up, all blocks, the last norm, the head, and the loss.
MEASURED_S = {
    "t4": (0.0011, 0.3938, 0.0003, 0.0092, 0.0044), "v100": (0.0016, 0.2822, 0.0006, 0.0074, 0.0026),
}  # fmt: skip
GAN_BATCH, GAN_UNITS, LATENT = 64, 56, 512
WIDE, NARROW = range(3, 15), range(41, 53)
# Seconds per sample on a V100 of all wide blocks, all narrow ones, and all other units together.
WIDE_S, NARROW_S, SMALL_S = 0.0739, 0.1440, 0.0083
# Unit of TransGAN's chain from which on: side of the grid, width of a token.
GRIDS = {0: (9, 1024), 16: (18, 1024), 19: (36, 1024), 21: (72, 256), 29: (144, 64), 36: (288, 16)}
POSITIONS = (2, 17, 20, 22, 30, 37)  # the units that add an embedding of the grid's positions
INSIDE = {"t4": 50 * GBIT, "v100": 170 * GBIT}
OUTSIDE = {"t4": 50 * GBIT, "v100": 10 * GBIT}


def nodes(*kinds: str) -> UnlikeNodes:
    """Return nodes of four devices of these kinds."""
    return UnlikeNodes(kinds, 4, INSIDE, OUTSIDE)


def gpt(*, measured: bool = False) -> LayerChain:
    """Return the 24-layer GPT of tables 6 to 9: 355.5 million parameters.

    Layers share its seconds by their flops, or as they were `measured`: the head with its loss is 3.6 or
    0.8 blocks.
    """
    flops = [0.0] * UNITS  # per token, of the products; the factor of backward is the same for all
    parameters = [0.0] * UNITS
    for unit in BLOCKS:
        flops[unit] = 24 * WIDTH**2 + 4 * LENGTH * WIDTH
        parameters[unit] = 12 * WIDTH**2
    flops[HEAD] = 2 * WIDTH * VOCABULARY
    parameters[LOOK_UP] = VOCABULARY * WIDTH
    whole = sum(flops)
    tokens = float(WIDTH * LENGTH)  # elements of a sample between units
    shares = {kind: tuple(s * f / whole for f in flops) for kind, s in WHOLE_S.items()}
    return LayerChain(
        {kind: _measured(kind) for kind in WHOLE_S} if measured else shares,
        tuple(parameters),
        passed=(tokens,) * UNITS,
        reduced=tuple(4 * tokens if unit in BLOCKS else 0.0 for unit in range(UNITS)),
    )


def _measured(kind: str) -> tuple[float, ...]:
    seconds = [0.0] * UNITS
    first, blocks, norm, head, loss = MEASURED_S[kind]
    for unit in BLOCKS:
        seconds[unit] = blocks / len(BLOCKS)
    seconds[LOOK_UP], seconds[HEAD - 1], seconds[HEAD], seconds[HEAD + 1] = first, norm, head, loss
    return tuple(seconds)


def transgan() -> LayerChain:
    """Return the generator of tables 10 and 11: 199.3 million parameters, 151 of them in wide blocks.

    The public code has 9² · 1024 elements behind every unit; here they grow with the grid.
    """
    begins = [max(start for start in GRIDS if start <= unit) for unit in range(GAN_UNITS)]
    grids = [GRIDS[begin] for begin in begins]
    elements = [float(side**2 * width) for side, width in grids]  # of a sample
    blocks = {*WIDE, *NARROW}
    small_s = SMALL_S / (GAN_UNITS - len(blocks))
    seconds = [small_s] * GAN_UNITS
    parameters = [0.0] * GAN_UNITS
    parameters[0] = LATENT * elements[0]
    for unit in POSITIONS:
        parameters[unit] = elements[unit]
    for units, whole_s in ((WIDE, WIDE_S), (NARROW, NARROW_S)):
        for unit in units:
            seconds[unit] = whole_s / len(units)
            parameters[unit] = 12 * grids[unit][1] ** 2
    return LayerChain(
        {"v100": tuple(seconds)},
        tuple(parameters),
        passed=tuple(elements),
        reduced=tuple(4 * elements[unit] if unit in blocks else 0.0 for unit in range(GAN_UNITS)),
    )
