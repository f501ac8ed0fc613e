"""AMP's clusters and models, as far as the paper and its public code tell of them.

Four nodes of four devices; links in Gbit/s inside and out of a node: T4 50 and 50, V100 170 and 10.

A whole GPT takes 0.409 s per sample on a T4 and 0.294 s on a V100, forward and backward. Units 2 to 25
of its 30, counted from 0, are blocks (Megatron's cut [0, 14, 30] has 12 on each side), unit 0 looks words
up, unit 28 is the head, which takes with the loss 3.6 blocks by its flops, and 0.8 as measured.

TransGAN's generator takes 0.226 s on a V100. Units 3 to 14 of its 56 are blocks of width 1024 on 9²
tokens, 41 to 52 blocks of width 16 on 288² tokens in windows of 18²; unit 0 makes the tokens, 16 to 40
upsample them. Flops do not tell seconds here: those of a wide and a narrow block are as 0.93 to 1, the
times that the public code has of them as 0.51 to 1, at 1.0 and 0.6 Tflop/s where the GPT has 8.5.

Devices are those of data sheets, whose ops run at the share of the sheet's peak and bandwidth with which
our GPT takes as long as AMP's. Between nodes of two kinds the slower link counts.

Source: AMP (Li et al., NeurIPS 2022), supplement §6.5; seconds are worked out from its tables 6 to 9 and
from its public code (`known_cost`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
from msgspec import structs

from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.boxing import COLLECTIVES
from autoddl.sbp.program import Program
from autoddl.sbp.state import broadcast
from autoddl.search.rivals.amp.estimate import LayerChain
from autoddl.search.rivals.amp.partition import Floats

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
# The units that begin TransGAN's grids: side, and width of a token.
GRIDS = {0: (9, 1024), 16: (18, 1024), 19: (36, 1024), 21: (72, 256), 29: (144, 64), 36: (288, 16)}
POSITIONS = (2, 17, 20, 22, 30, 37)  # the units that add an embedding of the grid's positions
INSIDE = {"t4": 50 * GBIT, "v100": 170 * GBIT}
OUTSIDE = {"t4": 50 * GBIT, "v100": 10 * GBIT}
LATENCY_S = 2e-5  # of a message between GPUs, of which the paper says nothing
# name, bytes, float32 flop/s, bytes/s of the data sheets
_SHEETS = {"t4": ("T4 16 GB", 8.1e12, 320e9), "v100": ("V100 16 GB", 15.7e12, 900e9)}
MEMORY_BYTES = 16 << 30
FAMILIES = "matmul", "elementwise", "memory", "reduction", "normalisation", "embedding", "conv"
OVERHEAD_S = 5e-6


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


def gpt_chain(seconds: Mapping[str, Floats]) -> LayerChain:
    """Return the units of the GPT, of 355.5 million parameters, for AMP's price."""
    blocks, tokens = np.isin(range(UNITS), BLOCKS), float(WIDTH * LENGTH)
    parameters = 12.0 * WIDTH**2 * blocks
    parameters[LOOK_UP] = VOCABULARY * WIDTH
    return LayerChain(seconds, parameters, np.full(UNITS, tokens), 4 * tokens * blocks)


def transgan_chain(seconds: Mapping[str, Floats]) -> LayerChain:
    """Return the units of the generator, of 199.3 million parameters, for AMP's price."""
    grids = [GRIDS[max(begin for begin in GRIDS if begin <= unit)] for unit in range(GAN_UNITS)]
    sides, widths = np.array(grids, dtype=float).T
    blocks, elements = np.isin(range(GAN_UNITS), [*WIDE, *NARROW]), sides**2 * widths
    parameters = 12 * widths**2 * blocks + elements * np.isin(range(GAN_UNITS), POSITIONS)
    parameters[0] = LATENT * elements[0]
    return LayerChain(seconds, parameters, elements, 4 * elements * blocks)


@cache
def profile(program: Program) -> Profile:
    """Return the profile of all kinds; `program` is that of a sample of the GPT."""
    return Profile(
        name="amp", source="AMP (Li et al., 2022) and NVIDIA's data sheets", kind="data sheet",
        device_type=program.device, levels=("node", "gpu"), links=tuple(_links()),
        devices={kind: _calibrated(kind, program) for kind in WHOLE_S},
        overlap={"node": 0.0, "gpu": 0.0},
    )  # fmt: skip


def _links() -> list[Link]:
    pairs = [("t4",), ("v100",), ("t4", "v100")]
    found = []
    for collective in (*COLLECTIVES, SEND_RECEIVE):
        sizes = (2,) if collective == SEND_RECEIVE else (2, 4)
        for group in sizes:
            for kind, rate in INSIDE.items():
                found.append(Link(collective, "gpu", group, LATENCY_S, 1 / rate, kinds=(kind,)))
            for kinds in pairs:
                rate = min(OUTSIDE[kind] for kind in kinds)
                link = Link(collective, "node", group, LATENCY_S, 1 / rate, kinds=kinds)
                found.append(link)
                if collective != SEND_RECEIVE:
                    found.append(structs.replace(link, group_size=4 * group, inner=4))
    return found


def _calibrated(kind: str, program: Program) -> Device:
    """Return a device on which all ops of a program but updates take as long as AMP's GPT."""
    works = [
        OpWork.of(program, op, dict.fromkeys(dict(op.operands), broadcast(1)), (1,))
        for op in program.ops
        if op.phase != "optimizer"
    ]
    low, high = 1e-3, 10.0
    for _ in range(60):
        share = math.sqrt(low * high)
        taken = sum(device_s(_device(kind, share), work) for work in works)
        low, high = (share, high) if taken > WHOLE_S[kind] else (low, share)
    return _device(kind, high)


def _device(kind: str, share: float) -> Device:
    name, flops, rate = _SHEETS[kind]
    peak = {"float32": flops * share, "float16": flops * share}
    everything = Kernel(OVERHEAD_S, rate * share, peak)
    kernels = dict.fromkeys(FAMILIES, everything)
    return Device(name, MEMORY_BYTES, peak, rate * share, OVERHEAD_S, kernels)
