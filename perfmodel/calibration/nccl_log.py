"""Read what NVIDIA's nccl-tests print: the rows of their tables become points.

The size that they print is the n of perfmodel.collectives for every collective: the whole array for
all_reduce, the gathered one for all_gather, the input for reduce_scatter, a rank's send buffer for
alltoall, the message for sendrecv (in which every rank sends to the next at once). Times are the
out-of-place ones, in µs. A log may hold several runs, indented, or with the labels of a launcher:

    [1,0]<stdout>:# Collective test starting: all_reduce_perf
    [1,0]<stdout>:# nThread 1 nGpus 2 …
    [1,0]<stdout>:#  Rank  0 Group  0 Pid 7 on host device  0 [0x07] NVIDIA A100-SXM4-80GB
    …

busbw/algbw is what a rank sends of a byte, 2(p − 1)/p in an all-reduce of p ranks: that tells whether
the ranks that are listed are all of them.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md ("S is the size in bytes of the total array") and the
…GetCollByteCount, …GetBw and writeDeviceReport functions of src/*.cu.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePath
from typing import NamedTuple

from autoddl import store
from autoddl.errors import AutoDDLError, one_line, shown
from autoddl.perfmodel import collectives
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from autoddl.units import runs_text

logger = logging.getLogger(__name__)

LEVELS = ("node", "gpu")
MISSING_S = 1000.0  # tools write 1e6 or 1e9 ms for what they could not measure

_USED = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "alltoall": ALL_TO_ALL,
    "sendrecv": SEND_RECEIVE,
}
_OTHERS = ("alltoallv", "broadcast", "gather", "hypercube", "reduce", "scatter")
PROGRAMS = ", ".join(f"{name}_perf" for name in _USED)
_PROGRAM = re.compile(rf"(?<![a-z])({'|'.join((*_USED, *_OTHERS))})_perf(?![a-z])")
_UNITS = {"(us)": 1e-6, "(ms)": 1e-3, "(s)": 1.0}
_LABEL = re.compile(
    r"^.*?<std(?:out|err)>:"  # Open MPI: "[1,0]<stdout>:"
    r"|^\s*[\w.@-]+:\s+(?=[#\d])"  # srun, pdsh: "0: "
    r"|\[\d+\](?=[\s#])"  # MPICH: "[0]", also inside of a line, wherever output was flushed
)
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+ on\s+(\S+)\s+device\s+\d+ \S+ (.+)"
)
_START = re.compile(r"#\s*nThread\s+(\d+)\s+nGpus\s+(\d+)")
_WHOLE = "give the whole output of a run"


class Log(NamedTuple):
    """The points of a log, and the names of the GPUs that it lists."""

    points: list[Point]
    gpus: tuple[str, ...]


class _Rank(NamedTuple):
    number: int
    group: int
    host: str


@dataclass
class _TestRun:
    """What the lines so far say of the run that they belong to."""

    program: str | None = None
    devices: int = 1  # of a process
    ranks: list[_Rank] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    unit_s: float = 1e-6


class _Grouped(NamedTuple):
    """The kind of a run's groups: `inner` of `size` members on each host, `groups` over its link."""

    size: int
    inner: int
    groups: int
    spread: bool


def read(text: str, *, level: str | None = None, where: str = "nccl-tests") -> Log:
    """Return the points of all tables in `text`.

    Without `level` groups on one host cross level "gpu", those on several hosts "node". Values that are
    missing (N/A, 1e6 ms, a size of 0) and tables of other collectives are left out with a warning.
    `where` names the text in errors; the collective is taken from it where no line names it.

    Raises:
        AutoDDLError: a damaged or truncated table, wrong results, several types of elements, ranks that
            are not listed or were not joined; with the line number.
    """
    reader, where = _Reader(level, where), store.told(where)
    for number, line in enumerate(text.splitlines(), 1):
        reader.heed(_LABEL.sub(" ", line).strip(), f"{where}, line {number}")
    if reader.strange:
        names = ", ".join(one_line(name, 40) for name in dict.fromkeys(reader.strange))
        logger.warning("%s: tables of %s are left out; used are %s", where, names, PROGRAMS)
    if reader.left_out:
        logger.warning("%s: %d rows without a usable time are left out", where, reader.left_out)
    if not reader.points:
        raise AutoDDLError(
            f"{where}: no row of an nccl-tests table with a time; give the whole output of {PROGRAMS}"
        )
    return Log(reader.points, tuple(dict.fromkeys(reader.gpus)))


class _Reader:
    """Take up line by line what nccl-tests print."""

    def __init__(self, level: str | None, where: str) -> None:
        self.level = level
        self.named = _program(PurePath(where).name) or _program(where)  # by the file
        self.run = _TestRun(self.named)
        self.points: list[Point] = []
        self.gpus: list[str] = []
        self.strange: list[str] = []  # programs whose tables are left out
        self.left_out = 0  # rows
        self.dtype = ""  # of elements

    def heed(self, line: str, place: str) -> None:
        """Take up a line: what it says of the run, or a row of its table."""
        run, words = self.run, line.lstrip("# ").split()
        if rank := _RANK.search(line):
            run.ranks.append(_Rank(int(rank[1]), int(rank[2] or 0), rank[3]))
            self.gpus.append(one_line(rank[4].strip()))
        elif started := _STARTING.search(line):
            run.program = _program(started[1]) or started[1]
        elif start := _START.search(line):  # the program's name stood before
            self.run = _TestRun(run.program, int(start[1]) * int(start[2]))
        elif line.startswith("# Avg bus bandwidth"):  # the end of a run
            self.run = _TestRun(self.named)
        elif line.startswith("#") and words[:2] == ["size", "count"] and "time" in words:
            run.columns = words
        elif line.startswith("#") and words[:1] == ["(B)"]:
            run.unit_s = next((_UNITS[word] for word in words if word in _UNITS), 1e-6)
        elif run.columns and words and all(word.isdigit() for word in words[:2]):
            self._take_row(words, place)
        elif "concluded" not in line:
            run.program = _program(line) or run.program

    def _take_row(self, words: Sequence[str], place: str) -> None:
        if self.run.program is None:
            raise AutoDDLError(
                f"{place}: the table does not say its collective; name the file after it, one of "
                f"{PROGRAMS}"
            )
        if self.run.program not in _USED:
            self.strange.append(self.run.program)
            return
        point, dtype = _point(self.run, words, self.level, place), words[2]
        self.dtype = self.dtype or dtype
        if dtype != self.dtype:  # each has its own times
            raise AutoDDLError(
                f"{place}: elements of type {shown(dtype)}, of {shown(self.dtype)} before; give one type "
                "in a file, as -d float tests it"
            )
        self.left_out += point is None
        self.points += [] if point is None else [point]


def _program(text: str) -> str | None:
    """Return the one program of nccl-tests that a text names: "sendrecv" for "log of sendrecv_perf"."""
    names = set(_PROGRAM.findall(text))
    return names.pop() if len(names) == 1 else None


def _point(run: _TestRun, words: Sequence[str], level: str | None, place: str) -> Point | None:
    """Return the point of one row, None where its time is missing."""
    columns = run.columns
    if columns[-1] == "timestamp":  # a date and a time
        words, columns = words[:-2], columns[:-1]
    missing = len(columns) - len(words)
    unnamed = missing == 1 and words[3].lstrip("-").isdigit()  # an empty redop
    if missing and not unnamed:
        raise AutoDDLError(
            f"{place}: {len(words)} values in {len(columns)} columns, truncated perhaps; "
            "run the test again or delete the line"
        )
    column = columns.index("time") - missing
    cells = words[column : column + 4]
    try:
        taken, *_ = [float(cell.replace("N/A", "nan")) for cell in cells]
    except ValueError:
        raise AutoDDLError(
            f"{place}: {shown(' '.join(cells))} are not numbers; run the test again or delete the line"
        ) from None
    for word, name in zip(reversed(words), reversed(columns), strict=False):
        if name == "#wrong" and word not in ("0", "N/A"):
            raise AutoDDLError(
                f"{place}: #wrong is {shown(word)}, so results are wrong; mend what is, and run the "
                "test again"
            )
    size, seconds = int(words[0]), taken * run.unit_s
    if size == 0 or not 0 < seconds < MISSING_S:
        return None
    collective, found = _USED[run.program or ""], _grouped(run, place)
    _check_size(collective, found.size, cells[1], cells[2], place)
    level = level or LEVELS[0 if found.spread else 1]
    if collective == SEND_RECEIVE:  # a ring: one message each way over the link of every unit
        return Point(
            collective, level, 2, size, seconds, 1, 1 if found.spread else max(1, found.size // 2)
        )
    return Point(collective, level, found.size, size, seconds, found.inner, found.groups)


def _grouped(run: _TestRun, place: str) -> _Grouped:
    """Return the kind of a run's groups."""
    ranks = run.ranks or [_Rank(number, 0, "") for number in range(run.devices)]
    _check_listed([rank.number for rank in ranks], run.devices, place)
    members = Counter(rank.group for rank in ranks)
    inside = Counter((rank.group, rank.host) for rank in ranks)
    if len(set(members.values())) > 1 or len(set(inside.values())) > 1:
        raise AutoDDLError(
            f"{place}: groups of {sorted(members.values())} ranks, {sorted(inside.values())} on each "
            "host; give runs in which all are equal"
        )
    size = max(members.values())
    if size < 2:
        raise AutoDDLError(f"{place}: one rank alone communicates with no other; use two and more")
    spread, groups = len(inside) > len(members), Counter(host for _, host in inside)
    inner = max(inside.values()) if spread else 1
    return _Grouped(size, inner, max(groups.values()), spread)


def _check_listed(numbers: Sequence[int], devices: int, place: str) -> None:
    """Raise unless the ranks are all those of processes with so many devices, each once."""
    rank, times = Counter(numbers).most_common(1)[0]
    if times > 1:
        raise AutoDDLError(
            f"{place}: rank {rank} is listed twice, so the processes did not work together; build "
            "nccl-tests with MPI=1"
        )
    if max(numbers) >= len(numbers):
        there = one_line(runs_text(sorted(numbers)), 100)
        raise AutoDDLError(f"{place}: of ranks 0-{max(numbers)} only {there} are listed; {_WHOLE}")
    if len(numbers) % devices:
        raise AutoDDLError(
            f"{place}: {len(numbers)} ranks are listed, but each process has {devices} (nThread × "
            f"nGpus); {_WHOLE}"
        )


def _check_size(collective: str, size: int, algbw: str, busbw: str, place: str) -> None:
    """Raise where the bandwidths of a row are those of groups of another size, or another collective."""
    (least, most), (bus_least, bus_most) = _rounded(algbw), _rounded(busbw)
    _, sent = collectives.coefficients(collective, size, 1.0)
    if sent * least > bus_most or bus_least > sent * most:
        raise AutoDDLError(
            f"{place}: busbw / algbw is {shown(busbw)} / {shown(algbw)}, but {sent:.3g} in {collective} "
            f"of {size} ranks, as many as are listed; {_WHOLE}"
        )


def _rounded(text: str) -> tuple[float, float]:
    """Return between what a printed number lies: "0.25" is 0.245 to 0.255; any for what is none."""
    number = Decimal(text.replace("N/A", "nan"))
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):  # inf, nan
        return -float("inf"), float("inf")
    half = 0.505 * 10.0**exponent
    return float(number) - half, float(number) + half
