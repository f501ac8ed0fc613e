"""Time the ops of small training steps on all ranks of this machine at once.

What one source (of the engine's probe for ops) gave is kept as soon as all ranks have timed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoddl import store
from autoddl.calibrate.campaign import Finished, Launches, OnProgress, Retries, check_measurable
from autoddl.engine.interface import Engine
from autoddl.perfmodel.calibration.kernel_fits import Timed

_SOURCES = {True: 5, False: 14}  # of the probe, quick or not; for the progress only
_SOURCE_S = {True: 1.5, False: 3.0}  # of timed calls for each source
_LIMIT_S = {True: 240.0, False: 900.0}


@dataclass(frozen=True)
class OpSettings:
    """What is measured: results of other settings do not go together with it."""

    ranks: int
    quick: bool = False
    ops: tuple[str, ...] = ()


def time_ops(
    engine: Engine,
    settings: OpSettings,
    *,
    partial: Path | None = None,
    fresh: bool = False,
    progress: OnProgress | None = None,
    timeout_s: float | None = None,
) -> list[Timed]:
    """Run `settings.ranks` ranks on this machine and return every op that they timed.

    Args:
        engine: whose ops are timed.
        settings: ranks, and what to time.
        partial: where finished sources are kept, and taken from if there are any.
        fresh: forget those.
        progress: is told how far it is, from another thread.
        timeout_s: seconds for everything; by default several times what it takes.

    Raises:
        LaunchError: a rank failed (three times, if the engine's race killed it) or the time is up.
        AutoDDLError: the engine is not installed, or `partial` is of other settings.
    """
    check_measurable(engine, timeout_s)
    found: dict[str, list[Timed]] = {}
    shown: list[int] = []

    def take(part: Any) -> None:
        found[part["source"]] = [Timed(**op) for op in part["ops"]]

    def look(folder: Path) -> None:
        for source, ops in _finished(folder, settings.ranks):
            if source not in found:
                done.add({"source": source, "ops": [asdict(op) for op in ops]})
        if progress is not None and len(found) not in shown[-1:]:
            shown.append(len(found))
            text = f"timed {list(found)[-1]}" if found else "starting the ranks"
            progress(text, min(1.0, len(found) / _SOURCES[settings.quick]))

    done = Finished(partial, "fit_device", asdict(settings), take, fresh=fresh)
    limit_s = timeout_s or _LIMIT_S[settings.quick]
    launches = Launches(engine.probes.ops, settings.ranks, limit_s)
    retries = Retries()
    while True:
        task = {
            "quick": settings.quick,
            "ops": list(settings.ops),
            "done": sorted(found),
            "seconds_per_source": _SOURCE_S[settings.quick],
        }
        result = launches.carry_out(task, look)
        if result.ok:
            return [op for ops in found.values() for op in ops]
        retries.account(result, None, label="", any_done=bool(found))


def _finished(folder: Path, ranks: int) -> list[tuple[str, list[Timed]]]:
    """Return the ops of the sources that all ranks have timed."""
    files = [folder / f"rank{rank}.jsonl" for rank in range(ranks)]
    if not all(file.exists() for file in files):
        return []
    lines = [store.read(file)[0].values() for file in files]
    return [(ranks[0]["source"], merged(ranks)) for ranks in zip(*lines, strict=False)]


def merged(ranks: Sequence[Mapping[str, Any]]) -> list[Timed]:
    """Return the ops of one source from what each rank found (device_probe.time_source).

    An op takes the mean of all ranks, times how much longer the slowest rank of a call takes than the
    mean one: the ranks of a real step wait for each other.
    """
    calls_s = list(zip(*(rank["calls_s"] for rank in ranks), strict=True))
    wait = sum(map(max, calls_s)) * len(ranks) / sum(map(sum, calls_s)) if calls_s else 1.0
    ops = []
    for records in zip(*(rank["records"] for rank in ranks), strict=True):
        values = {key: records[0][key] for key in Timed.__dataclass_fields__}
        mean_s = sum(r["seconds"] for r in records) / len(records)
        ops.append(Timed(**values | {"seconds": mean_s * wait}))
    return ops
