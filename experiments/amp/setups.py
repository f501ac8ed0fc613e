"""AMP's clusters and models, as far as the paper and its public code tell of them.

Four nodes of four devices; links in Gbit/s inside and out of a node: T4 50 and 50, V100 170 and 10.

A whole GPT takes 0.409 s per sample on a T4 and 0.294 s on a V100, forward and backward. Units 2 to 25
of its 30, counted from 0, are blocks (Megatron's cut [0, 14, 30] has 12 on each side), unit 0 looks words
up, unit 28 is the head, which takes with the loss 3.6 blocks by its flops, and 0.8 as measured.

TransGAN's generator takes 0.226 s on a V100. Units 3 to 14 of its 56 are blocks of width 1024 on 9²
tokens, 41 to 52 blocks of width 16 on 288² tokens in windows of 18²; unit 0 makes the tokens, 16 to 40
upsample them. Flops do not tell seconds here: those of a wide and a narrow block are as 0.93 to 1, the
times that the public code has of them as 0.51 to 1, at 1.0 and 0.6 Tflop/s where the GPT has 8.5.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.5; seconds are worked out from its tables 6 to 9 and
from its public code (`known_cost`).
"""

from __future__ import annotations

GBIT = 1e9 / 8
BATCH = 32
UNITS, BLOCKS, LOOK_UP, HEAD = 30, range(2, 26), 0, 28
WIDTH, LENGTH, VOCABULARY = 1024, 1024, 52256
WHOLE_S = {"t4": 0.409, "v100": 0.294}
# Of these the public code has for looking words up, all blocks, the last norm, the head, and the loss.
MEASURED_S = {
    "t4": (0.0011, 0.3938, 0.0003, 0.0092, 0.0044), "v100": (0.0016, 0.2822, 0.0006, 0.0074, 0.0026),
}  # fmt: skip
GAN_BATCH, GAN_UNITS = 64, 56
WIDE, NARROW = range(3, 15), range(41, 53)
# Seconds per sample on a V100 of all wide blocks, all narrow ones, and all other units together.
WIDE_S, NARROW_S, SMALL_S = 0.0739, 0.1440, 0.0083
GROWS = (16, 19, 21, 29, 36)  # the units that double the side of TransGAN's grid, from 9 on
POSITIONS = (2, 17, 20, 22, 30, 37)  # the units that add an embedding of the grid's positions
INSIDE = {"t4": 50 * GBIT, "v100": 170 * GBIT}
OUTSIDE = {"t4": 50 * GBIT, "v100": 10 * GBIT}


def gpt_s(kind: str) -> list[float]:
    """Return the measured seconds per sample of the units of the GPT of tables 6 to 9."""
    seconds = [0.0] * UNITS
    first, blocks, norm, head, loss = MEASURED_S[kind]
    for unit in BLOCKS:
        seconds[unit] = blocks / len(BLOCKS)
    seconds[LOOK_UP], seconds[HEAD - 1], seconds[HEAD], seconds[HEAD + 1] = first, norm, head, loss
    return seconds


def transgan_s() -> list[float]:
    """Return the measured seconds per sample of the units of the generator of tables 10, 11, on V100."""
    seconds = [SMALL_S / (GAN_UNITS - len(WIDE) - len(NARROW))] * GAN_UNITS
    for units, whole_s in ((WIDE, WIDE_S), (NARROW, NARROW_S)):
        for unit in units:
            seconds[unit] = whole_s / len(units)
    return seconds
