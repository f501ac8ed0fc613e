"""AMP's clusters as profiles: data-sheet devices, calibrated by what a whole GPT takes on one of them.

    homogeneous   4 nodes of 4 T4, 50 Gbit/s inside and between nodes
    mixed         3 nodes of 4 V100 (170 inside, 10 between) and one of 4 T4 (50, 50)
    uneven        4 nodes of 4 V100 (170, 10), for a model of uneven layers

A GPT takes 0.409 s per sample on a T4 and 0.294 s on a V100, forward and backward. Ops run at the share
of the data sheet's peak and bandwidth with which ours takes as long. Between nodes of two kinds the
slower link counts.
"""

from __future__ import annotations

import math
from functools import cache

from msgspec import structs

from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.sbp.boxing import COLLECTIVES
from autoddl.sbp.program import Program
from autoddl.sbp.state import broadcast
from experiments.amp.setups import INSIDE, OUTSIDE, WHOLE_S

LATENCY_S = 2e-5  # of a message between GPUs, of which the paper says nothing
# name, bytes, float32 flop/s, bytes/s of the data sheets
_SHEETS = {"t4": ("T4 16 GB", 8.1e12, 320e9), "v100": ("V100 16 GB", 15.7e12, 900e9)}
MEMORY_BYTES = 16 << 30
FAMILIES = "matmul", "elementwise", "memory", "reduction", "normalisation", "embedding", "conv"
OVERHEAD_S = 5e-6


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
