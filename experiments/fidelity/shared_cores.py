"""The device of ranks that share cores, for simulations in which they take turns.

Ops are timed with as many ranks as run; where these are more than the cores, an op's own time is its
share of the time that it took beside the others. It is more than that of an op whose rank has a core
to itself, since ranks evict each other's data from the caches.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from autoddl.calibrate.device import op_timing
from autoddl.engine import engines
from autoddl.perfmodel.calibration.kernel_fits import Timed, device_of
from autoddl.perfmodel.pipeline.pipeline_step import PipelineStep
from autoddl.perfmodel.pipeline.pipeline_timeline import simulate
from autoddl.perfmodel.profile_entries import Device
from experiments.lib.frames import RowStore


def cores() -> int:
    """Return how many cores ranks of this machine share."""
    return len(os.sched_getaffinity(0))


def time_ops(file: Path, ranks: int, number: int) -> None:
    """Time the ops of fit-device on so many ranks, unless the file has so many lines of it."""
    if len(_passes(file)) < number:
        settings = op_timing.OpSettings(ranks)
        campaign = op_timing.OpCampaign(settings, file.with_suffix(".partial"))
        campaign.run(op_timing.job_for(engines.load("oneflow"), settings))
        RowStore(file).add({"ops": [asdict(op) for op in campaign.ops]})
        campaign.forget()


def device(file: Path, ranks: int) -> Device:
    """Return the device that the quickest pass of each op gives: other processes only add time."""
    share = min(1.0, cores() / ranks)
    quickest = [min(same, key=lambda op: op.seconds) for same in zip(*_passes(file), strict=True)]
    return device_of(
        [replace(op, seconds=share * op.seconds) for op in quickest],
        name=f"one of {ranks} ranks on {cores()} cores, while it is its turn",
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // ranks,
    )


def step_s(step: PipelineStep, stage_size: int) -> float:
    """Return the simulated step on ranks that the launcher has bound to the cores in turn.

    Stages on several cores use all of these, so that they take turns with every other one there.
    """
    count = cores()
    ranks = [range(s * stage_size, (s + 1) * stage_size) for s in range(len(step.stages))]
    used = [{rank % count for rank in mine} for mine in ranks]
    device_of = tuple(min(n for n, other in enumerate(used) if other & mine) for mine in used)
    return simulate(replace(step, device_of=device_of)).step_s


def _passes(file: Path) -> Sequence[list[Timed]]:
    return [[Timed(**op) for op in row["ops"]] for row in RowStore(file).rows]
