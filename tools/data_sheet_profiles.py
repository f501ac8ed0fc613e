"""Write the bundled profiles of GPU clusters: `python tools/data_sheet_profiles.py [h100=OPS.csv …]`.

Peaks and bandwidths are those of the vendors' data sheets (dense; one direction of a link). Float32
products run on tensor cores (TF32) where these can: OneFlow 0.9's default for them
(ONEFLOW_EP_CUDA_ENABLE_TF32_EXECUTION), and cuDNN's.

A line of a link is (µs, GB/s): what the smallest message takes, and what a device sends of large ones
(nccl-tests' busbw). Lines are fits of perfmodel.calibration.alpha_beta to public outputs of nccl-tests
and to Aceso's measurements; where there are none, latencies are those of NCCL's own tuning model
(src/graph/tuning.cc of 2.30) for its protocols LL, which sends half of the bytes as flags, and Simple.

The kernels of H100 and H200 are fits of perfmodel.calibration.kernel_fits to what torch_ops.py timed;
they stay as the profile has them where no file is given.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed, device_of
from autoddl.perfmodel.collectives import COLLECTIVES, NVLS, RING, SEND_RECEIVE, TREE, coefficients
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

FOLDER = Path(__file__).parent.parent / "perfmodel" / "profiles"
GIB = 1 << 30
NODES = tuple(2**i for i in range(1, 11))
FEW_NODES = (2, 4, 16, 64)  # of which others are derived, where groups have few devices of a node
LAUNCH_S = 5e-6  # of a CUDA kernel from a graph of ops; assumed
ASSUMED = "launch overhead is an assumption; ops run at half of the peak"
ASSUMED_BOTH = ASSUMED.replace("is an assumption", "are assumptions")
TUNED = "latencies: NCCL 2.30's tuning model (src/graph/tuning.cc)"

# NCCL's latencies by protocol and algorithm, µs: in all, of a hop inside a node, of one between nodes
HOPS = {
    ("LL", RING): (6.6, 0.6, 2.7), ("LL", TREE): (6.8, 0.6, 5.0),
    ("Simple", RING): (8.4, 3.4, 14.0), ("Simple", TREE): (8.4, 4.0, 14.0),
}  # fmt: skip
NET_US = {"LL": 1.0, "Simple": 3.0}  # for each hop inside nodes while others are between them
BASE_US = HOPS["LL", RING][0]

# (collective, p): α in µs, 1/β in GB/s, mean error in %, R²
V100_FITS = {
    (ALL_REDUCE, 2): (23.0, 40.1, 3.1, 0.998), (ALL_REDUCE, 4): (9.9, 77.7, 1.2, 1.0),
    (ALL_REDUCE, 8): (7.0, 131.1, 2.5, 1.0), (ALL_GATHER, 2): (54.6, 26.4, 12.9, 0.939),
    (ALL_GATHER, 4): (20.5, 54.4, 13.2, 0.930), (ALL_GATHER, 8): (11.9, 83.2, 16.0, 0.851),
    (REDUCE_SCATTER, 2): (101.8, 25.2, 10.4, 0.970), (REDUCE_SCATTER, 4): (39.2, 53.6, 10.3, 0.979),
    (REDUCE_SCATTER, 8): (24.1, 83.1, 12.7, 0.959), (ALL_TO_ALL, 2): (82.0, 30.7, 19.8, 0.823),
    (ALL_TO_ALL, 4): (27.1, 44.8, 17.6, 0.846), (ALL_TO_ALL, 8): (14.6, 42.5, 7.3, 0.976),
    (SEND_RECEIVE, 2): (33.5, 45.7, 0.2, 1.0),
}  # fmt: skip
V100_BETWEEN = (75.9, 5.78, 1.4, 1.0)  # send/receive between nodes
V100_LL = 39.0  # GB/s at most; NCCL's tuning model
# Flop/s by family of ops: in float32 as one GPU was measured (`source` says where), else half of the peak
V100_KERNELS = {
    "matmul": {"float32": 12.27e12, "float16": 62.5e12},
    "conv": {"float32": 12.5e12, "float16": 62.5e12},
}

# Lines of 8 devices in a node. The first latency of each is NCCL's, since one thread launched all kernels
# of the test on A100 (34 µs for 0 bytes); so are all of H100 but those of all-reduces.
H100_NODE = {
    ALL_REDUCE: ((RING, 15.0, 141), (RING, 130, 347), (NVLS, 43.2, 383), (NVLS, 141, 477)),
    ALL_GATHER: ((RING, 10.8, 141), (RING, 32.2, 370)),
    REDUCE_SCATTER: ((RING, 10.8, 141), (RING, 32.2, 370)),
    ALL_TO_ALL: ((RING, 10.8, 335),),
    SEND_RECEIVE: ((RING, 11.8, 370),),
}
A100_NODE = {
    ALL_REDUCE: ((RING, 15.0, 37.6), (RING, 64.6, 150), (RING, 104, 233)),
    ALL_GATHER: ((RING, 10.8, 19.1), (RING, 67.2, 138), (RING, 130, 220)),
    REDUCE_SCATTER: ((RING, 10.8, 18.2), (RING, 58.9, 75.7), (RING, 104, 230)),
    ALL_TO_ALL: ((RING, 10.8, 43), (RING, 88, 224)),
    SEND_RECEIVE: ((RING, 11.8, 195),),
}
# All-reduces of nodes of 8 H100, by the number of nodes
H100_BETWEEN = {
    2: ((32.6, 17.0), (86.4, 304), (212, 469)),
    4: ((35.5, 1.0), (47.6, 39.1), (153, 350)),
    8: ((87.5, 71.7), (289, 318)),
}


def constant(level: str, alpha_s: float, bytes_per_s: float) -> list[Link]:
    """Return links that hold for all group sizes of a level."""
    return [Link(c, level, 2, alpha_s, 1 / bytes_per_s) for c in COLLECTIVES]


def line(
    collective: str, level: str, p: int, us: float, gb_per_s: float,
    *, inner: int = 1, algorithm: str = RING, **fit: Any,
) -> Link:  # fmt: skip
    """Return the line that takes so long for the smallest message and sends large ones at this rate."""
    messages, _ = coefficients(collective, p, 0.0, algorithm=algorithm, inner=inner)
    alpha_s, beta = _short(1e-6 * us / messages), 1e-9 / gb_per_s
    return Link(collective, level, p, alpha_s, beta, inner=inner, algorithm=algorithm, **fit)


def nccl_us(collective: str, protocol: str, nodes: int, inner: int, algorithm: str) -> float:
    """Return the latency that NCCL's tuning model has for `nodes` of `inner` devices each."""
    base, inside, between = HOPS[protocol, algorithm]
    if algorithm == TREE:
        return base + 2 * ((inner - 1) * inside + math.log2(nodes) * between)
    hops, crossing = (coefficients(collective, p, 0.0)[0] for p in (nodes * inner, nodes))
    if nodes > 1:
        inside = max(inside, NET_US[protocol])
    if inner == 1:
        between = HOPS[protocol, TREE][2]
    return base + (hops - crossing) * inside + crossing * between


def in_node(
    lines: Mapping[str, Iterable[tuple[str, float, float]]], sizes: Sequence[int]
) -> Iterator[Link]:
    """Yield the lines of 8 devices for fewer or more, whose hops take as long; the switch is for 4 on."""
    for collective, found in lines.items():
        for p, (algorithm, us, rate) in product(
            sizes[:1] if collective == SEND_RECEIVE else sizes, found
        ):
            hops, of = (coefficients(collective, n, 0.0)[0] for n in (8, p))
            if algorithm == RING:
                yield line(collective, "gpu", p, BASE_US + (us - BASE_US) * of / hops, rate)
            elif p > 2:
                yield line(collective, "gpu", p, us, rate, algorithm=algorithm)


def between(inner: int, gb_per_s: float, nodes: Iterable[int] = NODES) -> Iterator[Link]:
    """Yield NCCL's lines of groups with `inner` devices of each node; a node sends that much of theirs.

    A ring crosses each node's link once. So does a tree, whose nodes in the middle pass on what two of
    them send, but for two nodes: these send their halves to each other, up and down, n bytes in all,
    where the formula has 2·(p − 1)/p of them. In an all-to-all each of the `inner` devices sends
    (p − inner)/p of its n bytes through it, where the formula has (p − 1)/p.
    """
    for n, collective in product(nodes, (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)):
        algorithm = TREE if collective == ALL_REDUCE else RING
        most = gb_per_s * (2 * (1 - 1 / (n * inner)) if algorithm == TREE and n == 2 else 1)
        for protocol, rate in (("LL", most / 2), ("Simple", most)):
            us = nccl_us(collective, protocol, n, inner, algorithm)
            yield line(collective, "node", n * inner, us, rate, inner=inner, algorithm=algorithm)
    for n in nodes:
        us, p = nccl_us(ALL_TO_ALL, "LL", n, inner, RING), n * inner
        rate = gb_per_s * (p - 1) / (inner * (p - inner))
        yield line(ALL_TO_ALL, "node", p, us, rate, inner=inner)


def parts_of_nodes(inner: Iterable[int], gb_per_s: Callable[[int], float]) -> Iterator[Link]:
    """Yield the lines of groups with some devices of each node, of few numbers of nodes."""
    for few in inner:
        yield from between(few, gb_per_s(few), FEW_NODES)


def trees(inner: int, fits: Mapping[int, Iterable[tuple[float, float]]]) -> Iterator[Link]:
    """Yield the lines of all-reduces of some numbers of nodes, of more those of the most as trees."""
    for n in NODES:
        of = max(each for each in fits if each <= n)
        for us, rate in fits[of]:
            us *= math.log2(n) / math.log2(of)
            yield line(ALL_REDUCE, "node", n * inner, us, rate, inner=inner, algorithm=TREE)


def device(name: str, memory_bytes: int, bytes_per_s: float, peaks: dict[str, float]) -> Device:
    """Return a device of its data sheet; peaks in Tflop/s."""
    flops = {dtype: 1e12 * peak for dtype, peak in peaks.items()}
    return Device(name, memory_bytes, flops, bytes_per_s, LAUNCH_S)


def v100_links() -> Iterator[Link]:
    """Yield what was fitted, and LL for the small sizes that were not measured."""
    for (collective, p), (us, rate, percent, r2) in V100_FITS.items():
        messages, _ = coefficients(collective, p, 0.0)
        if collective != SEND_RECEIVE:
            small_us = nccl_us(collective, "LL", 1, p, RING)
            yield line(collective, "gpu", p, small_us, min(V100_LL, rate / 2))
        yield line(collective, "gpu", p, messages * us, rate, mean_error=percent / 100, r2=r2)
    us, rate, percent, r2 = V100_BETWEEN
    yield line(SEND_RECEIVE, "node", 2, us, rate, mean_error=percent / 100, r2=r2)
    yield from (*parts_of_nodes((1, 2, 4), lambda inner: rate), *between(8, rate))


def h100_links() -> Iterator[Link]:
    """Yield those of nodes of 8, each with a link of 400 Gb/s, of which NCCL uses 47 GB/s."""
    yield from in_node(H100_NODE, (2, 4, 8))
    yield line(SEND_RECEIVE, "node", 2, sum(HOPS["Simple", RING][::2]), 47)
    yield from parts_of_nodes((1, 2, 4), lambda inner: 47 * inner)
    yield from (link for link in between(8, 8 * 47) if link.collective != ALL_REDUCE)
    yield from trees(8, H100_BETWEEN)


def a100_links() -> Iterator[Link]:
    """Yield those of nodes of 16 with one link of 100 Gb/s."""
    yield from in_node(A100_NODE, (2, 4, 8, 16))
    yield line(SEND_RECEIVE, "node", 2, sum(HOPS["Simple", RING][::2]), 12.5)
    yield from (*parts_of_nodes((1, 2, 4, 8), lambda inner: 12.5), *between(16, 12.5))


def timed(file: Path) -> list[Timed]:
    """Return the ops of a CSV of torch_ops.py."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    texts = ("op_type", "family", "variant", "dtype")
    return [
        Timed(**{name: value if name in texts else float(value) for name, value in row.items()})
        for row in csv.DictReader(lines)
    ]


def with_kernels(sheet: Device, ops: Iterable[Timed]) -> Device:
    """Return a device of a data sheet with kernels fitted to ops that were timed without launches."""
    fitted = device_of(ops, name=sheet.name, memory_bytes=sheet.memory_bytes)
    return structs.replace(
        sheet,
        memory_bytes_per_s=_short(fitted.memory_bytes_per_s),
        kernels={name: _launched(kernel) for name, kernel in fitted.kernels.items()},
    )


def _launched(kernel: Kernel) -> Kernel:
    """Return a kernel that takes as long as a launch at least, in as many digits as tell something."""
    return Kernel(
        _short(max(LAUNCH_S, kernel.overhead_s)),
        _short(kernel.bytes_per_s),
        {dtype: _short(rate) for dtype, rate in kernel.flops_per_s.items()},
        None if kernel.mean_error is None else round(kernel.mean_error, 3),
    )


def _short(number: float) -> float:
    return float(f"{number:.4g}")


V100 = {"float32": 15.7, "float16": 125.0}
A100 = {"float32": 156.0, "float16": 312.0, "bfloat16": 312.0}
H100 = {"float32": 494.5, "float16": 989.0, "bfloat16": 989.0}
TIMED = (
    "device: kernels fitted to ops timed with PyTorch 2.11 and CUDA 13 on one {} (tools/torch_ops.py), "
    "which take a launch, assumed, at least; links ({}: 8 GPUs per node with a link of 400 Gb/s each) "
    "fitted to public output of nccl-tests: all-reduces in a node from github.com/NVIDIA/nccl-tests "
    "issue 290, kvcache-ai/Mooncake pull request 3484 (H20, which has the same NVLink) and digitalocean "
    "(2 GPUs), of 2 to 8 nodes from dstackai/dstack's documentation of Nebius and NVIDIA/nccl-tests "
    "issue 309; other rates as NVIDIA gives them in NVIDIA/nccl-tests issues 212 and 290 and NVIDIA/nccl "
    "issue 2169; other " + TUNED
)


PROFILES = (
    Profile(
        name="p100-aries",
        source="data sheets: NVIDIA P100 PCIe 16 GB; Cray XC50 with Aries, one GPU per node, about "
        f"10 GB/s injection per node (Piz Daint, as in AutoDDL §5.2); latencies and {ASSUMED_BOTH}",
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=tuple(constant("node", 20e-6, 10e9)),
        devices={ALIKE: device("P100 16 GB", 16 * GIB, 732e9, {"float32": 9.3, "float16": 18.7})},
    ),
    Profile(
        name="v100-8x",
        source="links fitted to Aceso's profiler database (github.com/microsoft/SuperScaler, branch "
        "Aceso, profiled-time-eurosys, prim_gpt_13B_* and p2p_*): 8 V100-32GB per node with NVLink, "
        "100 Gb/s between nodes, where only send/receive was measured, whose rate stands for all; other "
        f"{TUNED}; device: NVIDIA's data sheet, and float32 products and convolutions fitted to one run "
        "each of OneFlow on one GPU (github.com/Oneflow-Inc/DLPerf: BERT-base, batch 96; ResNet-50, "
        f"batch 128); {ASSUMED}",
        kind="measured", device_type="cuda", levels=("node", "gpu"),
        licence="measurements MIT, Copyright (c) Microsoft Corporation; this profile Apache-2.0",
        links=tuple(v100_links()),
        devices={
            ALIKE: structs.replace(
                device("V100 32 GB", 32 * GIB, 900e9, V100),
                kernels={name: Kernel(LAUNCH_S, 900e9, v) for name, v in V100_KERNELS.items()},
            )
        },
    ),
    Profile(
        name="a100-2x16",
        source="data sheets: NVIDIA A100 40 GB, NVLink 600 GB/s in both directions together, 100 Gb/s "
        "between nodes of 16 (as in AutoDDL §5.3); links in a node fitted to output of nccl-tests on 8 "
        "A100-SXM4-40GB (github.com/microsoft/superbenchmark, tests of cuda_nccl_bw; send/receive: "
        f"li-plus/playground); {TUNED}; {ASSUMED}",
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=tuple(a100_links()),
        devices={ALIKE: device("A100 40 GB", 40 * GIB, 1555e9, A100)},
    ),
    Profile(
        name="h100",
        source=TIMED.format("NVIDIA H100 80GB HBM3", "DGX H100"),
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=tuple(h100_links()), sharing={"node": 0.0},
        devices={ALIKE: device("H100 SXM 80 GB", 80 * GIB, 3350e9, H100)},
    ),
    Profile(
        name="h200",
        source=TIMED.format("NVIDIA H200", "DGX H200"),
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=tuple(h100_links()), sharing={"node": 0.0},
        devices={ALIKE: device("H200 SXM 141 GB", 141 * 10**9, 4800e9, H100)},
    ),
)  # fmt: skip


def written(profile: Profile, ops: Path | None) -> Profile:
    """Return a profile as it is to be written: with the kernels of its file, or fitted to timed ops."""
    sheet, file = profile.device, FOLDER / f"{profile.name}.json"
    if ops is not None:
        kept = with_kernels(sheet, timed(ops))
    else:
        known = profiles.load(file).device
        kept = structs.replace(
            sheet, kernels=sheet.kernels or known.kernels,
            memory_bytes_per_s=known.memory_bytes_per_s if known.kernels else sheet.memory_bytes_per_s,
        )  # fmt: skip
    return structs.replace(profile, devices={ALIKE: kept})


def main(given: Mapping[str, Path]) -> None:
    """Write the profiles, those that ops are given for with kernels fitted to these."""
    for profile in PROFILES:
        written(profile, given.get(profile.name)).save(FOLDER / f"{profile.name}.json")


if __name__ == "__main__":
    main({name: Path(file) for name, file in (word.split("=") for word in sys.argv[1:])})
