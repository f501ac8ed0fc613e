"""Output of nccl-tests becomes points with the n of table II; damaged files say where."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.nccl_tests import points_of_text, profile_of

COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"  # noqa: E501
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"  # noqa: E501


def output(program: str, hosts: tuple[str, ...], sizes: tuple[int, ...], us: float = 20.0) -> str:
    """Return a made-up run with one rank per entry of `hosts`: us + size/(100 GB/s)."""
    ranks = [
        f"#  Rank {i:2} Group  0 Pid  {100 + i} on {host} device  {i} [0000:07:00] NVIDIA H100 80GB HBM3"
        for i, host in enumerate(hosts)
    ]
    rows = [
        f"{n:12}  {n // 4:12}     float     sum      -1  {us + n / 1e5:7.2f}  1.00  1.00      0"
        f"  99999.0  1.00  1.00    N/A"
        for n in sizes
    ]
    head = [
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 8",
        "# Using devices",
    ]
    return "\n".join([*head, *ranks, "#", COLUMNS, UNITS, *rows, "# Avg bus bandwidth    : 1", ""])


@pytest.mark.parametrize(
    ("program", "collective"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("all_gather_perf", "all_gather"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("alltoall_perf", "all_to_all"),
    ],
)
def test_out_of_place_rows_become_points(program: str, collective: str) -> None:
    points = points_of_text(output(program, ("a",) * 4, (1024, 1 << 20)))
    seconds: Any = [pytest.approx(20.01e-6), pytest.approx(30.49e-6)]
    assert points == [
        Point(collective, "gpu", 4, 1024, seconds[0]),
        Point(collective, "gpu", 4, 1 << 20, seconds[1]),
    ]


@pytest.mark.parametrize(
    ("program", "factor"),
    [("all_reduce_perf", 1.5), ("all_gather_perf", 0.75), ("reduce_scatter_perf", 0.75),
     ("alltoall_perf", 0.75), ("sendrecv_perf", 1.0)],
)  # fmt: skip
def test_the_printed_size_is_n(program: str, factor: float) -> None:
    """The bus bandwidth of PERFORMANCE.md is the bytes that a rank sends over the time: our b/t."""
    point = points_of_text(output(program, ("a",) * 4, (1 << 20,)))[0]
    _, sent = collectives.coefficients(point.collective, point.group_size, point.size_bytes)
    assert sent == factor * (1 << 20)


def test_ranks_on_several_hosts_cross_the_nodes() -> None:
    (point,) = points_of_text(output("all_reduce_perf", ("a", "a", "b", "b"), (1024,)))
    assert (point.level, point.group_size, point.inner, point.groups) == ("node", 4, 2, 1)
    (point,) = points_of_text(output("sendrecv_perf", ("a", "a", "b", "b"), (1024,)))
    assert (point.level, point.group_size, point.inner, point.groups) == ("node", 2, 1, 1)
    (point,) = points_of_text(output("all_reduce_perf", ("a", "b"), (1024,)), level="rack")
    assert (point.level, point.inner) == ("rack", 1)


def test_mixed_runs_and_empty_operations() -> None:
    old = output("alltoall_perf", ("a",) * 2, (4096,)).replace("     sum      -1", "         -1")
    points = points_of_text(output("all_reduce_perf", ("a",) * 4, (1024,)) + old)
    assert [(p.collective, p.group_size) for p in points] == [("all_reduce", 4), ("all_to_all", 2)]


def test_missing_values_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    text = output("all_reduce_perf", ("a",) * 2, (0, 1024, 2048, 4096, 8192))
    text = text.replace("  20.02", "   1e+09").replace("  20.04", "     N/A")
    text = text.replace("  20.08  1.00  1.00      0", "  20.08  1.00  1.00      3")
    with caplog.at_level(logging.WARNING):
        assert [p.size_bytes for p in points_of_text(text)] == [1024]
    assert "4 rows without a usable time are left out" in caplog.text


GOOD = output("all_reduce_perf", ("a",) * 2, (1024, 2048))
BAD = {
    "truncated": (GOOD[: GOOD.index("2048") + 20], r"line 10: \d+ values in 13 columns, truncated"),
    "not numbers": (GOOD.replace("20.02", "2x.02"), "line 10: '2x.02 .* are not numbers"),
    "no rows": (GOOD[: GOOD.index("        1024")], "no row of an nccl-tests table"),
    "no name": (
        GOOD.replace("all_reduce_perf", "perf"),
        "line 9: the table does not say its collective; name the file after it",
    ),
    "no MPI": (GOOD.replace("Rank  1", "Rank  0"), "rank 0 is listed twice.*MPI=1"),
    "one rank": (output("all_reduce_perf", ("a",), (8,)), "one rank alone"),
    "uneven": (output("all_reduce_perf", ("a", "a", "b"), (8,)), "groups of .* all are equal"),
}


@pytest.mark.parametrize("damage", BAD)
def test_damaged_files(damage: str) -> None:
    text, message = BAD[damage]
    with pytest.raises(AutoDDLError, match=message) as error:
        points_of_text(text, where="run.txt")
    assert str(error.value).startswith("run.txt")
    assert "\n" not in str(error.value)


def test_a_profile_of_two_files(tmp_path: Path) -> None:
    sizes = tuple(1 << i for i in range(10, 28, 2))
    inside, between = tmp_path / "inside.txt", tmp_path / "between.txt"
    inside.write_text(output("all_reduce_perf", ("a",) * 2, sizes, 20.0))
    between.write_text(output("all_reduce_perf", ("a", "b"), sizes, 60.0))
    profile = profile_of([inside, between])
    assert profile.device_type == "cuda" and profile.device.name == "NVIDIA H100 80GB HBM3"
    found = {link.level: link for link in profile.links}
    assert found["gpu"].alpha_s == pytest.approx(10e-6, rel=0.01)
    assert found["node"].alpha_s == pytest.approx(30e-6, rel=0.01)
    assert found["gpu"].beta_s_per_byte == pytest.approx(1e-11, rel=0.01)
    with pytest.raises(AutoDDLError, match="level rack; levels are node, gpu"):
        profile_of([inside], level="rack")
    with pytest.raises(AutoDDLError, match=r"nofile.*can't be read"):
        profile_of([tmp_path / "nofile"])
