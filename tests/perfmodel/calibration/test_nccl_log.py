"""Logs of nccl-tests become points with the n of table II; damaged ones say where."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.nccl_log import read
from tests.perfmodel.calibration.nccl_outputs import COLUMNS, UNITS, old, output

SIZES = (1 << 20, 1 << 24)


def points_of(text: str, **options: Any) -> list[Point]:
    return read(text, **options).points


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
    seconds: Any = [pytest.approx(20.01e-6), pytest.approx(30.49e-6)]
    assert points_of(output(program, ("a",) * 4, (1024, 1 << 20))) == [
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
    point = points_of(output(program, ("a",) * 4, (1 << 20,)))[0]
    _, sent = collectives.coefficients(point.collective, point.group_size, point.size_bytes)
    assert sent == factor * (1 << 20)


def test_ranks_on_several_hosts_cross_the_nodes() -> None:
    (point,) = points_of(output("all_reduce_perf", ("a", "a", "b", "b"), (1024,)))
    assert (point.level, point.group_size, point.inner, point.groups) == ("node", 4, 2, 1)
    (point,) = points_of(output("sendrecv_perf", ("a", "a", "b", "b"), (1024,)))
    assert (point.level, point.group_size, point.inner, point.groups) == ("node", 2, 1, 1)
    (point,) = points_of(output("all_reduce_perf", ("a", "b"), (1024,)), level="rack")
    assert (point.level, point.inner) == ("rack", 1)


def test_mixed_runs_and_empty_operations() -> None:
    bare = output("alltoall_perf", ("a",) * 2, (4096,)).replace("     sum      -1", "         -1")
    points = points_of(output("all_reduce_perf", ("a",) * 4, (1024,)) + bare)
    assert [(p.collective, p.group_size) for p in points] == [("all_reduce", 4), ("all_to_all", 2)]


def test_missing_values_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    text = output("all_reduce_perf", ("a",) * 2, (0, 1024, 2048, 4096, 8192))
    text = text.replace("  20.02", "   1e+09").replace("  20.04", "     N/A")
    with caplog.at_level(logging.WARNING):
        assert [p.size_bytes for p in points_of(text)] == [1024, 8192]
    assert "3 rows without a usable time are left out" in caplog.text


def labelled(text: str, label: str) -> str:
    return "".join(f"{label}{line}" for line in text.splitlines(keepends=True))


def mpich(text: str) -> str:
    """Label what each flush writes, inside of lines as well."""
    return labelled(text, "[0] ").replace("     sum      -1  ", "     sum      -1[0]  ")


LAUNCHED = {
    "Open MPI": lambda text: labelled(text, "[1,0]<stdout>:"),
    "Open MPI 5": lambda text: labelled(text, "[prterun-host-7@1,0]<stdout>: "),
    "with times": lambda text: labelled(text, "Fri Feb 13 12:34:56 2026<stdout>:"),
    "srun": lambda text: labelled(text, " 0: "),
    "clush": lambda text: labelled(text, "node-1.cluster: "),
    "MPICH": mpich,
    "indented": lambda text: labelled(text, "\t    "),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_labels_of_launchers_are_no_matter(launcher: str) -> None:
    text = output("all_gather_perf", ("a", "a", "b", "b"), SIZES)
    assert points_of(LAUNCHED[launcher](text)) == points_of(text)


def test_columns_of_other_options() -> None:
    """-S adds a time of day, -I the spread of the iterations."""
    text = output("all_reduce_perf", ("a",) * 4, SIZES)
    timed = text.replace(COLUMNS, f"{COLUMNS}           timestamp").replace(
        "    N/A\n", "    N/A  2026-07-09 16:03:21\n"
    )
    spread = text.replace(" #wrong     time", " #wrong   i_min   i_max     time").replace(
        "      0  99999.0", "      0   19.00   22.00  99999.0"
    )
    assert timed != text != spread
    assert points_of(timed) == points_of(spread) == points_of(text)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("nccl_all_reduce_perf.log", old(output("all_reduce_perf", ("a",) * 2, SIZES))),
        ("all_reduce_perf/of sendrecv_perf/1.txt", output("all_reduce_perf", ("a",) * 2, SIZES)),
        ("sendrecv_perf.txt", output("all_reduce_perf_mpi", ("a",) * 2, SIZES)),
        ("1.txt", "$ ./all_reduce_perf -g 2\n" + old(output("all_reduce_perf", ("a",) * 2, SIZES))),
        (
            "all_reduce_perf.txt",
            "for all_gather_perf and sendrecv_perf\n"
            + old(output("all_reduce_perf", ("a",) * 2, SIZES)),
        ),
    ],
)
def test_the_collective_is_what_the_output_says_else_the_file(where: str, text: str) -> None:
    assert {point.collective for point in points_of(text, where=where)} == {"all_reduce"}


@pytest.mark.parametrize("program", ["broadcast_perf", "reduce_perf", "alltoallv_perf", "new_perf"])
def test_other_collectives_are_left_out(program: str, caplog: pytest.LogCaptureFixture) -> None:
    known, other = (output(name, ("a",) * 2, SIZES) for name in ("all_reduce_perf", program))
    for text in (known + other, other + known):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert points_of(text, where="all_reduce_perf.log") == points_of(known)
        (record,) = caplog.records
        assert program.removesuffix("_perf") in record.getMessage()
        assert "are left out; used are all_reduce_perf" in record.getMessage()
    with pytest.raises(AutoDDLError, match="no row of an nccl-tests table"):
        points_of(other)


def test_what_a_log_says_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    text = output("\x1b[31mred", ("a",) * 2, SIZES) + output(
        "all_reduce_perf", ("a",) * 2, SIZES, gpu="\x1b[31mH100"
    )
    with caplog.at_level(logging.WARNING):
        log = read(text)
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert log.gpus == ("NVIDIA H100 80GB HBM3", r"\x1b[31mH100")


def without(text: str, *ranks: int) -> str:
    lines = text.split("\n")
    return "\n".join(x for x in lines if not any(x.startswith(f"#  Rank {r:2} ") for r in ranks))


GOOD = output("all_reduce_perf", ("a",) * 2, (1024, 2048))
LARGE = output("all_reduce_perf", ("a",) * 8 + ("b",) * 8, SIZES)
BAD = {
    "truncated": (GOOD[: GOOD.index("2048") + 20], r"line 10: \d+ values in 13 columns, truncated"),
    "not numbers": (GOOD.replace("20.02", "2x.02"), "line 10: '2x.02 .* are not numbers"),
    "no rows": (GOOD[: GOOD.index("        1024")], "no row of an nccl-tests table"),
    "no name": (old(GOOD), "line 8: the table does not say its collective; name the file after it"),
    "no MPI": (GOOD.replace("Rank  1", "Rank  0"), "rank 0 is listed twice.*MPI=1"),
    "one rank": (output("all_reduce_perf", ("a",), (8,)), "one rank alone"),
    "uneven": (output("all_reduce_perf", ("a", "a", "b"), (8,)), "groups of .* all are equal"),
    "holes": (
        without(LARGE, *range(1, 7), *range(9, 15)),
        "of ranks 0-15 only 0, 7-8, 15 are listed; give the whole output of a run",
    ),
    "the other host": (without(LARGE, *range(8)), "of ranks 0-15 only 8-15 are listed"),
    "one host": (
        without(LARGE, *range(8, 16)),
        r"busbw / algbw is '\d+.\d+' / '\d+.\d+', but 1.75 in all_reduce of 8 ranks, as many as ",
    ),
    "a cut tail": (
        without(output("all_reduce_perf", ("a",) * 8, SIZES), 6, 7),
        "but 1.67 in all_reduce of 6 ranks",
    ),
    "another collective": (
        GOOD.replace("all_reduce_perf", "all_gather_perf"),
        "but 0.5 in all_gather of 2 ranks",
    ),
    "no list": (
        without(LARGE, *range(16)).replace("nGpus 1", "nGpus 8"),
        "but 1.75 in all_reduce of 8 ranks",
    ),
    "other numbers of GPUs": (
        LARGE.replace("nThread 1 nGpus 1", "nThread 3 nGpus 2"),
        r"16 ranks are listed, but each process has 6 \(nThread × nGpus\)",
    ),
    "wrong results": (
        GOOD.replace("      0  99999.0", "      3  99999.0"),
        "line 9: #wrong is '3', so results are wrong; mend what is, and run the test again",
    ),
    "wrong results in place": (GOOD.replace("    N/A\n", "      1\n"), "line 9: #wrong is '1'"),
    "two types in a table": (
        GOOD.replace("512     float", "512      half"),
        "line 10: elements of type 'half', of 'float' before; give one type in a file, as -d float",
    ),
    "two types in a file": (
        GOOD + output("all_gather_perf", ("a",) * 2, SIZES).replace(" float ", "  half "),
        "line 22: elements of type 'half', of 'float' before",
    ),
    "a time of CPUs": (GOOD.replace("    time  ", " cputime  "), "no row .* with a time"),
}


@pytest.mark.parametrize("damage", BAD)
def test_damaged_files(damage: str) -> None:
    text, message = BAD[damage]
    with pytest.raises(AutoDDLError, match=message) as error:
        read(text, where="run.txt")
    assert str(error.value).startswith("run.txt")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [2, 3, 8, 16, 64, 256])
@pytest.mark.parametrize("program", ["all_reduce_perf", "all_gather_perf", "sendrecv_perf"])
def test_rounded_bandwidths_of_whole_lists_are_right(program: str, size: int) -> None:
    """From 8 bytes on, of which nothing is left in two digits."""
    sizes = tuple(1 << i for i in range(3, 34))
    assert len(points_of(output(program, ("a",) * size, sizes))) == len(sizes)


def test_processes_of_several_devices() -> None:
    text = LARGE.replace("nThread 1 nGpus 1", "nThread 2 nGpus 4")
    assert points_of(text) == points_of(LARGE)
    assert UNITS in text
