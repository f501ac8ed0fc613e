"""Made-up output of nccl-tests: the least of some lines, bandwidths as PERFORMANCE.md has them."""

from __future__ import annotations

from collections.abc import Sequence

COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"  # noqa: E501
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"  # noqa: E501
H100 = "NVIDIA H100 80GB HBM3"


def output(
    program: str, hosts: Sequence[str], sizes: Sequence[int], us: float = 20.0, gpu: str = H100,
    more: Sequence[tuple[float, float]] = (),
) -> str:  # fmt: skip
    """Return a run with one rank per entry of `hosts`: µs + size/(GB/s), first of (`us`, 100)."""
    p = len(hosts)
    factors = {"all_reduce_perf": 2 * (p - 1) / p, "sendrecv_perf": 1.0}
    bus = factors.get(program.removesuffix("_mpi"), (p - 1) / p)
    ranks = [
        f"#  Rank {i:2} Group  0 Pid  {100 + i} on {host} device  {i} [0000:07:00] {gpu}"
        for i, host in enumerate(hosts)
    ]
    rows = []
    for n in sizes:
        taken = min(start + n / (1e3 * rate) for start, rate in ((us, 100.0), *more))
        rate = n / taken / 1e3
        rows.append(
            f"{n:12}  {n // 4:12}     float     sum      -1  {taken:7.2f}  {rate:6.2f}  {rate * bus:6.2f}"
            "      0  99999.0  1.00  1.00    N/A"
        )
    head = [
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 8",
        "# Using devices",
    ]
    tail = ["# Avg bus bandwidth    : 1", "#", f"# Collective test concluded: {program}", ""]
    return "\n".join([*head, *ranks, "#", COLUMNS, UNITS, *rows, *tail])


def old(text: str) -> str:
    """Return a run as earlier versions print it, which do not name the program."""
    return "\n".join(line for line in text.split("\n") if "Collective test" not in line)
