"""Write the bundled profiles of GPU clusters: `python tools/data_sheet_profiles.py [h100=OPS.csv …]`.

Peaks and bandwidths are those of the vendors' data sheets (dense; one direction of a link). Float32
products run on tensor cores (TF32) where these can: OneFlow 0.9's default for them
(ONEFLOW_EP_CUDA_ENABLE_TF32_EXECUTION), and cuDNN's. Data sheets do not give the latency of a
collective's step: `alpha_s` are assumptions. The links between the V100s are fits of
perfmodel.calibration.alpha_beta to public measurements (Aceso, see its `source`).

The kernels of H100 and H200 are fits of perfmodel.calibration.kernel_fits to what torch_ops.py timed;
they stay as the profile has them where no file is given.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

from msgspec import structs

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed, device_of
from autoddl.perfmodel.collectives import COLLECTIVES, SEND_RECEIVE
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

FOLDER = Path(__file__).parent.parent / "perfmodel" / "profiles"
GIB = 1 << 30
NODES = tuple(2**i for i in range(1, 11))
LAUNCH_S = 5e-6  # of a CUDA kernel from a graph of ops; assumed
ASSUMED = "latencies and launch overhead are assumptions; ops run at half of the peak"

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


def constant(level: str, alpha_s: float, bytes_per_s: float) -> list[Link]:
    """Return links that hold for all group sizes of a level."""
    return [Link(c, level, 2, alpha_s, 1 / bytes_per_s) for c in COLLECTIVES]


def spanning(inner: int, alpha_s: float, bytes_per_s: float) -> list[Link]:
    """Return links of groups of all devices of several nodes, whose nodes have one link each.

    A ring crosses each node's link once. In an all-to-all each of the `inner` devices sends
    (p − inner)/p of its n bytes through it, where the formula has (p − 1)/p.
    """
    links = []
    for collective, nodes in product(COLLECTIVES, NODES):
        p, beta = nodes * inner, 1 / bytes_per_s
        if collective == ALL_TO_ALL:
            beta *= inner * (p - inner) / (p - 1)
        if collective != SEND_RECEIVE:
            links.append(Link(collective, "node", p, alpha_s, beta, inner=inner))
    return links


def device(name: str, memory_bytes: int, bytes_per_s: float, peaks: dict[str, float]) -> Device:
    """Return a device of its data sheet; peaks in Tflop/s."""
    flops = {dtype: 1e12 * peak for dtype, peak in peaks.items()}
    return Device(name, memory_bytes, flops, bytes_per_s, LAUNCH_S)


def v100_links() -> list[Link]:
    """Return what was fitted; between nodes all collectives have the α and β of send/receive."""
    fits = [((c, "gpu", p), fit) for (c, p), fit in V100_FITS.items()]
    fits += [((c, "node", 2), V100_BETWEEN) for c in COLLECTIVES]
    links = [
        Link(*kind, 1e-6 * us, 1e-9 / rate, mean_error=percent / 100, r2=r2)
        for kind, (us, rate, percent, r2) in fits
    ]
    return links + spanning(8, 1e-6 * V100_BETWEEN[0], 1e9 * V100_BETWEEN[1])


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
    "which take a launch, assumed, at least; links: data sheets, 900 GB/s of NVLink in both directions "
    "together, 8 GPUs per node with a link of 400 Gb/s each ({}), latencies are assumptions"
)
NVLINK4 = constant("gpu", 10e-6, 450e9)
NDR = constant("node", 20e-6, 50e9)  # 400 Gb/s for each GPU
EIGHT_NICS = spanning(8, 20e-6, 8 * 50e9)


PROFILES = (
    Profile(
        name="p100-aries",
        source="data sheets: NVIDIA P100 PCIe 16 GB; Cray XC50 with Aries, one GPU per node, about "
        f"10 GB/s injection per node (Piz Daint, as in AutoDDL §5.2); {ASSUMED}",
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=tuple(constant("node", 20e-6, 10e9)),
        devices={ALIKE: device("P100 16 GB", 16 * GIB, 732e9, {"float32": 9.3, "float16": 18.7})},
    ),
    Profile(
        name="v100-8x",
        source="links fitted to Aceso's profiler database (github.com/microsoft/SuperScaler, branch "
        "Aceso, profiled-time-eurosys, prim_gpt_13B_* and p2p_*): 8 V100-32GB per node with NVLink, "
        "100 Gb/s between nodes, where only send/receive was measured and stands for all; device: "
        f"NVIDIA's data sheet; {ASSUMED.removeprefix('latencies and ')}",
        kind="measured", device_type="cuda", levels=("node", "gpu"),
        licence="measurements MIT, Copyright (c) Microsoft Corporation; this profile Apache-2.0",
        links=tuple(v100_links()), devices={ALIKE: device("V100 32 GB", 32 * GIB, 900e9, V100)},
    ),
    Profile(
        name="a100-2x16",
        source="data sheets: NVIDIA A100 40 GB, NVLink 600 GB/s in both directions together, 100 Gb/s "
        f"between nodes of 16 (as in AutoDDL §5.3); {ASSUMED}",
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=(
            *constant("gpu", 10e-6, 300e9), *constant("node", 30e-6, 12.5e9),
            *spanning(16, 30e-6, 12.5e9),
        ),
        devices={ALIKE: device("A100 40 GB", 40 * GIB, 1555e9, A100)},
    ),
    Profile(
        name="h100",
        source=TIMED.format("NVIDIA H100 80GB HBM3", "DGX H100"),
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=(*NVLINK4, *NDR, *EIGHT_NICS), sharing={"node": 0.0},
        devices={ALIKE: device("H100 SXM 80 GB", 80 * GIB, 3350e9, H100)},
    ),
    Profile(
        name="h200",
        source=TIMED.format("NVIDIA H200", "DGX H200"),
        kind="data sheet", device_type="cuda", levels=("node", "gpu"), licence="Apache-2.0",
        links=(*NVLINK4, *NDR, *EIGHT_NICS), sharing={"node": 0.0},
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
            sheet, kernels=known.kernels,
            memory_bytes_per_s=known.memory_bytes_per_s if known.kernels else sheet.memory_bytes_per_s,
        )  # fmt: skip
    return structs.replace(profile, devices={ALIKE: kept})


def main(given: Mapping[str, Path]) -> None:
    """Write the profiles, those that ops are given for with kernels fitted to these."""
    for profile in PROFILES:
        written(profile, given.get(profile.name)).save(FOLDER / f"{profile.name}.json")


if __name__ == "__main__":
    main({name: Path(file) for name, file in (word.split("=") for word in sys.argv[1:])})
