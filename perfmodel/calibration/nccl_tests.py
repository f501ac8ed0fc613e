"""Read what NVIDIA's nccl-tests print, and make a profile of it.

The size that they print is the n of perfmodel.collectives for every collective: the whole array for
all_reduce, the gathered one for all_gather, the input for reduce_scatter, a rank's send buffer for
alltoall, the message for sendrecv (in which every rank sends to the next at once). Times are the
out-of-place ones, in µs.

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md ("S is the size in bytes of the total array") and the
…GetCollByteCount and print_header functions of src/*.cu.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.measurements import links_of, sharing_of
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import Device, Profile
from autoddl.sbp.boxing import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

logger = logging.getLogger(__name__)

LEVELS = ("node", "gpu")
MISSING_S = 1000.0  # tools write 1e6 or 1e9 ms for what they could not measure

_COLLECTIVES = {
    "all_reduce_perf": ALL_REDUCE,
    "all_gather_perf": ALL_GATHER,
    "reduce_scatter_perf": REDUCE_SCATTER,
    "alltoall_perf": ALL_TO_ALL,
    "sendrecv_perf": SEND_RECEIVE,
}
_DEVICES = {
    "P100": "p100-aries",
    "V100": "v100-8x",
    "A100": "a100-2x16",
    "H100": "h100",
    "H200": "h200",
}
_UNITS = {"(us)": 1e-6, "(ms)": 1e-3, "(s)": 1.0}
_NAME = re.compile(r"(?<![a-z])([a-z]+(?:_[a-z]+)*_perf)(?![a-z])")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+ on\s+(\S+)\s+device\s+\d+ \S+ (.+)"
)
_START = re.compile(r"#\s*nThread\s+(\d+)\s+nGpus\s+(\d+)")


@dataclass
class _TestRun:
    """What the lines so far say of the run that they belong to."""

    collective: str | None = None
    devices: int = 0  # of one process, where no ranks are listed
    ranks: list[tuple[int, int, str]] = field(default_factory=list)  # number, group, host
    columns: list[str] = field(default_factory=list)
    unit_s: float = 1e-6
    gpu: str = ""


@dataclass(frozen=True)
class _Grouping:
    """How the groups of a run lie on the nodes."""

    group_size: int
    inner: int
    groups: int
    hosts: int


def points_of_text(
    text: str, *, level: str | None = None, where: str = "nccl-tests"
) -> list[Point]:
    """Return the points of all tables in `text`, which may hold several runs.

    Without `level` groups on one host cross level "gpu", those on several hosts "node". Values that are
    missing (N/A, 1e6 ms, a size of 0) or wrong (#wrong) are left out with a warning. `where`
    names the text in errors; the collective is taken from it where no line names it.

    Raises:
        AutoDDLError: a damaged or truncated table, an unknown collective, ranks that were not
            joined; with the line number.
    """
    run, points, left_out = _TestRun(collective=_collective(where)), [], 0
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{where}, line {number}"
        words = line.split()
        if _heeded(run, line, where):
            continue
        if not run.columns or not words or not all(word.isdigit() for word in words[:2]):
            continue
        found = _row(run, words, level, place)
        points += found
        left_out += not found
    if left_out:
        logger.warning("%s: %d rows without a usable time are left out", where, left_out)
    if not points:
        raise AutoDDLError(
            f"{where}: no row of an nccl-tests table with a time; give the whole output of "
            f"{', '.join(_COLLECTIVES)}"
        )
    return points


def profile_of(
    files: Iterable[str | Path], *, level: str | None = None, base: Profile | None = None,
    name: str = "nccl-tests",
) -> Profile:  # fmt: skip
    """Return a profile of the links in nccl-tests' output files.

    Device and levels are those of `base`, else of the bundled profile of the GPU that the files name
    (with a warning where there is none, the numbers of an A100).

    Raises:
        AutoDDLError: an unreadable or damaged file; a level that the profile does not have.
    """
    paths = [Path(file) for file in files]
    points, gpu = [], ""
    for file in paths:
        text = _read(file)
        points += points_of_text(text, level=level, where=str(file))
        gpu = gpu or next((m[4].strip() for m in map(_RANK.search, text.splitlines()) if m), "")
    levels = base.levels if base else LEVELS
    strange = {point.level for point in points} - set(levels)
    if strange:
        raise AutoDDLError(
            f"nccl-tests: level {', '.join(sorted(strange))}; levels are {', '.join(levels)}"
        )
    links = links_of(points)
    return Profile(
        name=name,
        source=f"nccl-tests on {gpu or 'unnamed GPUs'}: {', '.join(file.name for file in paths)}",
        kind="measured",
        device_type=base.device_type if base else "cuda",
        levels=levels,
        links=links,
        device=base.device if base else _device(gpu),
        sharing={**(base.sharing if base else {}), **sharing_of(links, levels)},
    )


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AutoDDLError(f"nccl-tests file {file}: can't be read ({error})") from None


def _device(gpu: str) -> Device:
    """Return the device of the bundled profile for a GPU name such as NVIDIA H100 80GB HBM3."""
    known = next((bundled for word, bundled in _DEVICES.items() if word in gpu), None)
    device = profiles.load(known or _DEVICES["A100"]).device
    if known is None:
        logger.warning("nccl-tests: GPU %r is not known; ops are priced as on %s", gpu, device.name)
    return replace(device, name=gpu) if gpu and known else device


def _collective(text: str) -> str | None:
    names = [_COLLECTIVES[name] for name in _NAME.findall(text) if name in _COLLECTIVES]
    return names[-1] if names else None


def _heeded(run: _TestRun, line: str, where: str) -> bool:
    """Take up what a line says of the run; tell whether it was such a line."""
    rank = _RANK.search(line)
    if rank:
        run.ranks.append((int(rank[1]), int(rank[2] or 0), rank[3]))
        return True
    start = _START.search(line)
    if start:  # a new run; its name stood before, in the command or in "Collective test starting"
        run.devices = int(start[1]) * int(start[2])
        run.ranks, run.columns = [], []
        return True
    if line.startswith("# Avg bus bandwidth"):  # the end of a run
        run.collective, run.columns = _collective(where), []
        return True
    name = _collective(line)
    if name is not None:
        if "concluded" not in line:
            run.collective = name
        return True
    words = line.lstrip("# ").split()
    if line.startswith("#") and words[:2] == ["size", "count"] and "time" in words:
        run.columns = words
        return True
    if line.startswith("#") and words[:1] == ["(B)"]:
        run.unit_s = next((_UNITS[word] for word in words if word in _UNITS), 1e-6)
        return True
    return False


def _row(run: _TestRun, words: Sequence[str], level: str | None, place: str) -> list[Point]:
    """Return the point of one row, none where its time is missing or its result wrong."""
    if run.collective is None:
        raise AutoDDLError(
            f"{place}: the table does not say its collective; name the file after it, one of "
            f"{', '.join(_COLLECTIVES)}"
        )
    unnamed = len(words) == len(run.columns) - 1 and _is_number(words[3])  # an empty redop
    if len(words) != len(run.columns) and not unnamed:
        raise AutoDDLError(
            f"{place}: {len(words)} values in {len(run.columns)} columns, truncated perhaps; "
            "run the test again or delete the line"
        )
    column = len(words) - len(run.columns) + run.columns.index("time")
    try:
        size, taken = int(words[0]), _number(words[column])
        wrong = _number(words[column + 3])
    except ValueError:
        raise AutoDDLError(
            f"{place}: {' '.join(words[column : column + 4])!r} are not numbers; run the test again "
            "or delete the line"
        ) from None
    seconds = math.nan if taken is None else taken * run.unit_s
    if size == 0 or not 0 < seconds < MISSING_S or ("#wrong" in run.columns and wrong):
        return []
    kind = _kind(run, place)
    if level is None:
        level = LEVELS[0] if kind.hosts > 1 else LEVELS[1]
    if run.collective == SEND_RECEIVE:  # a ring: one message each way over the link of every unit
        groups = 1 if kind.hosts > 1 else max(1, kind.group_size // 2)
        return [Point(SEND_RECEIVE, level, 2, size, seconds, groups=groups)]
    return [
        Point(
            run.collective,
            level,
            kind.group_size,
            size,
            seconds,
            inner=kind.inner,
            groups=kind.groups,
        )
    ]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _number(word: str) -> float | None:
    return None if word == "N/A" else float(word)


def _kind(run: _TestRun, place: str) -> _Grouping:
    """Return how the ranks of a run are grouped, from its list of ranks."""
    numbers = [number for number, _, _ in run.ranks] or list(range(run.devices))
    if len(set(numbers)) < len(numbers):
        raise AutoDDLError(
            f"{place}: rank {Counter(numbers).most_common(1)[0][0]} is listed twice, so the processes "
            "did not work together; build nccl-tests with MPI=1"
        )
    members = Counter(group for _, group, _ in run.ranks) or Counter({0: run.devices})
    inside = Counter((group, host) for _, group, host in run.ranks) or Counter(
        {(0, ""): run.devices}
    )
    hosts = {group: sum(g == group for g, _ in inside) for group in members}
    if len(set(members.values())) > 1 or len(set(inside.values())) > 1:
        raise AutoDDLError(
            f"{place}: groups of {sorted(members.values())} ranks, {sorted(inside.values())} on each "
            "host; give runs in which all are equal"
        )
    group_size, per_host, spread = members[min(members)], max(inside.values()), max(hosts.values())
    if group_size < 2:
        raise AutoDDLError(f"{place}: one rank alone communicates with no other; use two and more")
    return _Grouping(
        group_size=group_size,
        inner=per_host if spread > 1 else 1,
        groups=max(Counter(host for _, host in inside).values()),
        hosts=spread,
    )
