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
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from autoddl import store
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.alpha_beta import Point
from autoddl.perfmodel.calibration.measurements import links_of, sharing_of
from autoddl.perfmodel.collectives import SEND_RECEIVE
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device
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
        _heed(run, line, where)
        words = line.split()
        if run.columns and words and all(word.isdigit() for word in words[:2]):
            found = _row(run, words, level, f"{where}, line {number}")
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
        devices=base.devices if base else {ALIKE: _device(gpu)},
        sharing={**(base.sharing if base else {}), **sharing_of(links, levels)},
    )


def _read(file: Path) -> str:
    where = f"nccl-tests file {store.told(file)}"
    try:
        return store.content(file, where, "name what nccl-tests printed").decode()
    except UnicodeDecodeError as error:
        raise AutoDDLError(
            f"{where}: no text ({error.reason}); name what nccl-tests printed"
        ) from None


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


def _heed(run: _TestRun, line: str, where: str) -> None:
    """Take up what a line says of the run."""
    words = line.lstrip("# ").split()
    if rank := _RANK.search(line):
        run.ranks.append((int(rank[1]), int(rank[2] or 0), rank[3]))
    elif start := _START.search(line):
        # a new run; its name stood before, in the command or in "Collective test starting"
        run.devices = int(start[1]) * int(start[2])
        run.ranks, run.columns = [], []
    elif line.startswith("# Avg bus bandwidth"):  # the end of a run
        run.collective, run.columns = _collective(where), []
    elif name := _collective(line):
        run.collective = run.collective if "concluded" in line else name
    elif line.startswith("#") and words[:2] == ["size", "count"] and "time" in words:
        run.columns = words
    elif line.startswith("#") and words[:1] == ["(B)"]:
        run.unit_s = next((_UNITS[word] for word in words if word in _UNITS), 1e-6)


def _row(run: _TestRun, words: Sequence[str], level: str | None, place: str) -> list[Point]:
    """Return the point of one row, none where its time is missing or its result wrong."""
    if run.collective is None:
        raise AutoDDLError(
            f"{place}: the table does not say its collective; name the file after it, one of "
            f"{', '.join(_COLLECTIVES)}"
        )
    missing = len(run.columns) - len(words)
    unnamed = missing == 1 and words[3].lstrip("-").isdigit()  # an empty redop
    if missing and not unnamed:
        raise AutoDDLError(
            f"{place}: {len(words)} values in {len(run.columns)} columns, truncated perhaps; "
            "run the test again or delete the line"
        )
    column = run.columns.index("time") - missing
    try:
        taken, wrong = (float(words[c].replace("N/A", "nan")) for c in (column, column + 3))
    except ValueError:
        raise AutoDDLError(
            f"{place}: {' '.join(words[column : column + 4])!r} are not numbers; run the test again "
            "or delete the line"
        ) from None
    size, seconds = int(words[0]), taken * run.unit_s
    if size == 0 or not 0 < seconds < MISSING_S or ("#wrong" in run.columns and wrong > 0):
        return []
    group_size, inner, groups, spread = _grouped(run, place)
    level = level or LEVELS[0 if spread else 1]
    if run.collective == SEND_RECEIVE:  # a ring: one message each way over the link of every unit
        group_size, inner, groups = 2, 1, 1 if spread else max(1, group_size // 2)
    return [Point(run.collective, level, group_size, size, seconds, inner, groups)]


def _grouped(run: _TestRun, place: str) -> tuple[int, int, int, bool]:
    """Return the size, the inner size and the number of a run's groups; and if they cross hosts."""
    ranks = run.ranks or [(number, 0, "") for number in range(run.devices)]
    rank, times = Counter(number for number, _, _ in ranks).most_common(1)[0] if ranks else (0, 1)
    if times > 1:
        raise AutoDDLError(
            f"{place}: rank {rank} is listed twice, so the processes did not work together; build "
            "nccl-tests with MPI=1"
        )
    members = Counter(group for _, group, _ in ranks)
    inside = Counter((group, host) for _, group, host in ranks)
    if len(set(members.values())) > 1 or len(set(inside.values())) > 1:
        raise AutoDDLError(
            f"{place}: groups of {sorted(members.values())} ranks, {sorted(inside.values())} on each "
            "host; give runs in which all are equal"
        )
    group_size = max(members.values(), default=0)
    if group_size < 2:
        raise AutoDDLError(f"{place}: one rank alone communicates with no other; use two and more")
    spread, groups = len(inside) > len(members), Counter(host for _, host in inside)
    return group_size, max(inside.values()) if spread else 1, max(groups.values()), spread
