"""Try plans one after the other in ranks that are thrown away; keep what came of each in a folder.

The folder has `trials.jsonl`, a line for each plan that was tried; the plans, by the digits of their
states, and what their ranks wrote; and `best.json`, the fastest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import msgspec

import autoddl
from autoddl import store
from autoddl.calibrate.kept_results import KeptResults
from autoddl.calibrate.probe_launches import carry_out, memory, probe_job, worth_another
from autoddl.engine import engines
from autoddl.engine.engines import ONEFLOW
from autoddl.errors import AutoDDLError, one_line, why
from autoddl.launch.job import LaunchError, LaunchJob, LaunchResult, checked
from autoddl.plan import codec
from autoddl.plan.search_report import PlanTrial
from autoddl.plan.value import PlanValue
from autoddl.search.baselines import BASELINES
from autoddl.trials.trial_settings import Trials
from autoddl.trials.trial_task import TrialTask
from autoddl.units import bytes_text

PLANNING_S = 600.0  # at least, for a script to get to `optimize`, and for its search
ATTEMPTS = 2  # OneFlow's own race may end the ranks of a good plan (calibrate.probe_launches)
RANK_BYTES = 300 << 20  # what a process of OneFlow takes before there is a model
_RANK = "autoddl.trials.trial_rank"
_OVER = ("out of memory", "bad_alloc", "MemoryError", "Cannot allocate memory")
_KILLED = 128 + 9

Launch = Callable[[LaunchJob, Any, Callable[[Any], None]], LaunchResult]
"""Starts ranks for a task; they tell lines (probe_launches.carry_out)."""


class TrialRecord(KeptResults[str]):
    """What came of the plans of a program, by their states."""

    kind: ClassVar[str] = "trials"

    def __init__(self, folder: Path, program: str) -> None:
        """Read what a folder has, or make it.

        Raises:
            AutoDDLError: it is of another program or version, or cannot be written.
        """
        self.anew = f"delete {store.told(folder)} to begin anew"
        _make(folder)
        settings = {"program": program, "autoddl": autoddl.__version__}
        super().__init__(settings, folder / "trials.jsonl", fresh=False)

    def read(self, line: Any) -> tuple[str, PlanTrial]:
        """Return the states of the plan that a line is of, and the line."""
        trial = msgspec.convert(line, PlanTrial)
        return trial.states, trial


def plans_of(
    script: Sequence[str], ranks: int, settings: Trials, launch: Launch = carry_out
) -> tuple[str, tuple[PlanValue, ...]]:
    """Return the fingerprint of the program that a script plans first, and its best plans.

    Raises:
        AutoDDLError: there is no plan, or the script does not call `optimize`.
        LaunchError: its ranks failed, or did not get there in time.
    """
    folder = Path(settings.folder).absolute()
    job = _job(script, ranks, max(PLANNING_S, settings.timeout_s), folder / "planning")
    _make(folder)
    told: list[Any] = []
    task = TrialTask(str(folder), settings.top, settings.steps)
    result = launch(job, task, told.append)
    if not told and not result.ok:
        raise LaunchError(result)
    if not told:
        raise AutoDDLError(f"try: {_NO_CALL.format(script=' '.join(script))}")
    if "error" in told[-1]:
        raise AutoDDLError(told[-1]["error"])
    plans = tuple(
        codec.load(folder / f"{states}.json", engines.model) for states in told[-1]["plans"]
    )
    wanted = plans[0].devices
    if wanted != ranks:
        raise AutoDDLError(
            f"try: the script plans {plans[0].devices_text}, {wanted} devices, on {ranks} ranks; give "
            f"--nproc-per-node {wanted}, or leave the mesh open"
        )
    return told[-1]["program"], plans


_NO_CALL = "{script} ended without a call of autoddl.optimize for this graph"


def fastest(
    plans: Sequence[PlanValue],
    program: str,
    script: Sequence[str],
    settings: Trials,
    *,
    tell: Callable[[PlanTrial], None] = lambda _: None,
    launch: Launch = carry_out,
) -> PlanValue:
    """Try plans of a program and return the fastest one, with all trials in its report.

    Those that the folder knows are not tried again. What fails, hangs or needs too much memory is noted
    and passed over. `tell` is called with each trial.

    Raises:
        AutoDDLError: no plan can be run, or the folder is of another program.
    """
    record = TrialRecord(Path(settings.folder), program)
    trials = []
    for plan in plans:
        known = record.found.get(plan.states)
        if known is None:
            known = _tried(plan, program, script, settings, launch)
            record.add(asdict(known))
        trials.append(replace(known, predicted_s=plan.estimate.step_s))
        tell(trials[-1])
    good = [pair for pair in zip(trials, plans, strict=True) if pair[0].measured_s is not None]
    if not good:
        raise AutoDDLError(
            f"trials: none of {len(plans)} plans could be run; {trials[0].name}: {trials[0].note}; "
            f"what came of the others is in {record.partial}"
        )
    best = min(good, key=lambda pair: pair[0].measured_s or 0.0)[1]
    chosen = replace(best, search=replace(best.search, trials=tuple(trials)))
    codec.save(chosen, Path(settings.folder, "best.json"))
    return chosen


def _tried(
    plan: PlanValue, program: str, script: Sequence[str], settings: Trials, launch: Launch
) -> PlanTrial:
    plan.check_runnable()
    trial = PlanTrial(plan.states, name_of(plan), plan.estimate.step_s)
    folder = Path(settings.folder).absolute()
    job = _job(script, plan.devices, settings.timeout_s, folder / plan.states)
    needed, there = _machine_bytes(plan), memory("MemTotal")
    if needed > there:
        ranks = f"{plan.devices} ranks need {bytes_text(needed)}"
        return replace(trial, note=f"over memory: {ranks}, this machine has {bytes_text(there)}")
    file = folder / f"{plan.states}.json"
    codec.save(plan, file)
    task = TrialTask(str(folder), settings.top, settings.steps, program, str(file))
    for _ in range(ATTEMPTS):
        told: list[Any] = []
        result = launch(job, task, told.append)
        if told:
            return replace(trial, measured_s=median(told[-1]["seconds"]))
        if not worth_another(result) or _is_over_memory(result):
            break
    note = _why(result) or _NO_CALL.format(script=" ".join(script))
    return replace(trial, note=one_line(note))


def _why(result: LaunchResult) -> str:
    """Return why ranks told nothing; "" if they ended well."""
    last = f": {result.tail[-1].strip()}" if result.tail else ""
    over = "over memory: " if _is_over_memory(result) else ""
    return f"{over}{result.message}{last}" if result.message else ""


def _is_over_memory(result: LaunchResult) -> bool:
    """Tell whether a rank failed for memory; the system kills those that take too much."""
    said = any(word in line for line in result.tail for word in _OVER)
    return said or result.exit_code == _KILLED


def _machine_bytes(plan: PlanValue) -> int:
    """Return what all ranks of a plan take of this machine's memory at least."""
    own = plan.devices * RANK_BYTES
    on_host = plan.device == "cpu"
    return own + sum(part.memory_bytes * part.mesh.size for part in plan.parts if on_host)


def name_of(plan: PlanValue) -> str:
    """Return devices, micro-batches and what else tells a plan from others, in words."""
    solver = plan.search.solver
    return ", ".join(
        [
            plan.devices_text,
            *([f"{plan.micro_batches} micro-batches"] if plan.pipelined else []),
            *(["two halves"] if plan.duplex else []),
            *(["compute stream"] if plan.compute_stream else []),
            *([solver] if solver in BASELINES else []),
        ]
    )


def _job(script: Sequence[str], ranks: int, limit_s: float, logs: Path) -> LaunchJob:
    """Return the launch of a script's ranks, which keeps what they write in a folder.

    Raises:
        AutoDDLError: there is no such script, too many ranks, or no engine.
    """
    checked(LaunchJob(tuple(script), ranks, timeout_s=limit_s))
    job = probe_job(engines.load(ONEFLOW), _RANK, nproc_per_node=ranks, timeout_s=limit_s)
    return replace(job, command=(*job.command, *script), log_dir=logs)


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise AutoDDLError(
            f"trials: folder {store.told(folder)}: {one_line(why(error))}; give another"
        ) from None
    return folder
