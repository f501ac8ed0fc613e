"""Third proof: random whole plans of the zoo on real ranks, held against one device.

Every op, parameter and optimizer state gets a random valid signature; losses, weights and buffers
after three steps must be those of one process. Each finished plan is a line of a file, so that a run
goes on where it was cut off; a plan that crashes or hangs its ranks is a line, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoddl.engine.launch import launch
from autoddl.errors import AutoDDLError
from experiments.models import ZOO

RANKS = 4
MESHES = ("4", "2x2")
TOLERANCE = 1e-4  # float32 sums in another order stay far below it
PLAN_LIMIT_S = 120.0
_ROOT = Path(__file__).parents[2]

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PlanRun:
    """One random plan: how far its losses, weights and buffers are from one device's.

    `changed` counts the signatures that the engine did not execute as planned; `error` tells why a
    plan did not run at all.
    """

    model: str
    mesh: str
    seed: int
    loss: float = math.nan
    weights: float = math.nan
    moved: float = math.nan
    changed: int = 0
    redistributions: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether the plan ran as planned and in parity."""
        near = self.loss <= TOLERANCE and self.weights <= TOLERANCE
        return not self.error and near and self.changed == 0


@dataclass(frozen=True)
class ExecutionReport:
    """All plans that were run, by model and mesh.

    `moved` of a plan says how far training moves the weights: what parity has to be measured against.
    """

    runs: tuple[PlanRun, ...]

    columns = (
        "model", "mesh", "plans", "in parity", "max |Δloss|", "max |Δvariable|", "training moved",
        "redistributions",
    )  # fmt: skip

    @property
    def faults(self) -> tuple[str, ...]:
        """Say, one line each, which plans are not in parity or did not run as planned."""
        return tuple(
            f"{run.model} on [{run.mesh}], seed {run.seed}: "
            + (
                run.error
                or f"|Δloss| {run.loss:.2e}, |Δvariable| {run.weights:.2e}, {run.changed} signatures "
                "changed by the engine"
            )
            for run in self.runs
            if not run.ok
        )

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per model and mesh."""
        for model, mesh in dict.fromkeys((run.model, run.mesh) for run in self.runs):
            runs = [run for run in self.runs if (run.model, run.mesh) == (model, mesh)]
            good = [run for run in runs if run.ok]
            yield (
                model,
                mesh,
                str(len(runs)),
                str(len(good)),
                f"{max((run.loss for run in good), default=math.nan):.1e}",
                f"{max((run.weights for run in good), default=math.nan):.1e}",
                f"{min((run.moved for run in good), default=math.nan):.1e}",
                f"{sum(run.redistributions for run in good) / max(1, len(good)):.0f}",
            )

    def summary(self) -> str:
        """Sum up in one line."""
        models = {run.model for run in self.runs}
        good = [run for run in self.runs if run.ok]
        return (
            f"{len(self.runs)} random plans of {len(models)} models on {RANKS} ranks, {len(good)} in "
            f"parity: max |Δloss| {max((run.loss for run in good), default=math.nan):.1e}, "
            f"max |Δvariable| {max((run.weights for run in good), default=math.nan):.1e}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every plan, as plain JSON values."""
        return {"runs": [asdict(run) for run in self.runs]}


def run(
    folder: Path,
    *,
    seed: int = 0,
    plans: int = 15,
    models: Collection[str] | None = None,
    meshes: Sequence[str] = MESHES,
    progress: Progress | None = None,
) -> ExecutionReport:
    """Run `plans` random plans of every model on every mesh; go on with what `folder` has.

    Raises:
        AutoDDLError: an unknown model, or the reference on one device fails.
    """
    names = tuple(ZOO) if models is None else tuple(models)
    for name in names:
        if name not in ZOO:
            raise AutoDDLError(f"model {name!r}: the zoo has {', '.join(ZOO)}")
    folder.mkdir(parents=True, exist_ok=True)
    total, done = len(names) * len(meshes) * plans, 0
    found: list[PlanRun] = []
    for name in names:
        for mesh in meshes:
            for result in _plans(folder, name, mesh, range(seed, seed + plans)):
                found.append(result)
                done += 1
                if progress is not None:
                    progress(done, total)
    return ExecutionReport(tuple(found))


def _plans(folder: Path, model: str, mesh: str, seeds: range) -> Iterator[PlanRun]:
    """Yield the runs of one model on one mesh, those of earlier calls first."""
    file = folder / f"{model}-{mesh}.jsonl"
    known = {run.seed: run for run in _read(file)}
    yield from (known[seed] for seed in seeds if seed in known)
    missing = [seed for seed in seeds if seed not in known]
    while missing:
        reference = _reference(folder, model)
        error = _on_ranks(model, mesh, missing, reference, file)
        fresh = {run.seed: run for run in _read(file)}
        yield from (fresh[seed] for seed in missing if seed in fresh)
        missing = [seed for seed in missing if seed not in fresh]
        if missing and error:
            crashed = PlanRun(model, mesh, missing.pop(0), error=error)
            append(file, crashed)
            yield crashed


def _on_ranks(model: str, mesh: str, seeds: list[int], reference: Path, file: Path) -> str:
    """Run the plans on real ranks; return what went wrong, or nothing."""
    command = ["-m", "experiments.proofs.execution_ranks", "plans", model, str(reference)]
    command += [mesh, str(file), ",".join(map(str, seeds))]
    result = launch(
        command,
        nproc_per_node=RANKS,
        timeout_s=PLAN_LIMIT_S * len(seeds),
        env=_environment(),
        stream_rank0=False,
    )
    return "" if result.ok else f"{result.message}: {' | '.join(result.tail[-3:])}"


def _reference(folder: Path, model: str) -> Path:
    """Return the file with what one device does, made if it is missing."""
    file = folder / f"{model}.npz"
    if not file.exists():
        command = ["-m", "experiments.proofs.execution_ranks", "reference", model, str(file)]
        result = launch(
            command,
            nproc_per_node=1,
            timeout_s=PLAN_LIMIT_S,
            env=_environment(),
            stream_rank0=False,
        )
        if not result.ok:
            raise AutoDDLError(
                f"model {model}: does not train on one device: {result.message}: "
                f"{' | '.join(result.tail[-3:])}"
            )
    return file


def _environment() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(_ROOT) + (os.pathsep + path if path else "")}


def _read(file: Path) -> list[PlanRun]:
    """Return the runs of a file; a last line that was cut off is dropped."""
    if not file.exists():
        return []
    text = file.read_text()
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    return [PlanRun(**json.loads(line)) for line in text.splitlines()]


def append(file: Path, result: PlanRun) -> None:
    """Add one run to a file."""
    with file.open("a") as out:
        out.write(json.dumps(asdict(result)) + "\n")
