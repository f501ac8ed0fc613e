"""Third proof: random whole plans of the zoo on real ranks, held against one device.

Every op, parameter and optimizer state gets a random valid signature; losses, weights and buffers
after three steps must be those of one process. Each finished plan is a line of a file, so that a run
goes on where it was cut off; a plan that crashes or hangs its ranks is a line, too.

A row of a plan (model, mesh, seed) says how far `loss` and `weights` are from one device's, how far
training `moved` the weights, which is what parity has to be measured against, how many `redistributions`
there are, how many ops are `ordered`, how many it has `more` than the graph since BatchNorms and dropouts
are in parts (in every other plan), and how many signatures the engine `changed`; or in `error` why it did
not run at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from autoddl.errors import AutoDDLError
from experiments.lib.frames import Row, RowStore
from experiments.lib.ranks import started
from experiments.models import LAYERED, ZOO

MODELS = {**ZOO, **LAYERED}
RANKS = 4
MESHES = ("4", "2x2")
TOLERANCE = 1e-5  # float32 sums in another order stay far below it
PLAN_LIMIT_S = 120.0
PLANS_AT_ONCE = 20  # in one launch: the engine keeps the buffers of all graphs of a process
IN_HALVES = " in halves"  # behind a mesh: the plans are of two halves of the batch in turn
_MODULE = "experiments.proofs.execution_ranks"

Progress = Callable[[int, int], None]


def in_parity(run: Row) -> bool:
    """Tell whether a plan ran as planned and in parity."""
    near = run["loss"] <= TOLERANCE and run["weights"] <= TOLERANCE
    return not run["error"] and near and run["changed"] == 0


@dataclass(frozen=True)
class ExecutionReport:
    """All plans that were run, by model and mesh."""

    runs: Sequence[Row]

    columns = (
        "model", "mesh", "plans", "in parity", "max |Δloss|", "max |Δvariable|", "training moved",
        "redistributions",
    )  # fmt: skip

    @property
    def faults(self) -> tuple[str, ...]:
        """Say, one line each, which plans are not in parity or did not run as planned."""
        return tuple(
            f"{run['model']} on [{run['mesh']}], seed {run['seed']}: "
            + (
                run["error"]
                or f"|Δloss| {run['loss']:.2e}, |Δvariable| {run['weights']:.2e}, {run['changed']} "
                "signatures changed by the engine"
            )
            for run in self.runs
            if not in_parity(run)
        )

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per model and mesh; the figures are those of plans in parity."""
        for (model, mesh), mine in self._frame.groupby(["model", "mesh"], sort=False):
            good = mine[mine.ok]
            worst = (good.loss.max(), good.weights.max(), good.moved.min())
            moves = good.redistributions.sum() / max(1, len(good))
            texts = (f"{value:.1e}" for value in worst)
            yield (str(model), str(mesh), str(len(mine)), str(len(good)), *texts, f"{moves:.0f}")

    def summary(self) -> str:
        """Sum up in one line."""
        frame = self._frame
        good = frame[frame.ok]
        return (
            f"{len(frame)} random plans of {frame.model.nunique()} models on {RANKS} ranks, "
            f"{len(good)} in parity: max |Δloss| {good.loss.max():.1e}, "
            f"max |Δvariable| {good.weights.max():.1e}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every plan, as plain JSON values."""
        return {"runs": list(self.runs)}

    @property
    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame([{**run, "ok": in_parity(run)} for run in self.runs])


def run(
    folder: Path,
    *,
    seed: int = 0,
    plans: int = 15,
    models: Collection[str] | None = None,
    meshes: Sequence[str] = MESHES,
    duplex: bool = False,
    progress: Progress | None = None,
) -> ExecutionReport:
    """Run `plans` random plans of every model on every mesh; go on with what `folder` has.

    With `duplex` they are plans of two halves of the batch in turn.

    Raises:
        AutoDDLError: an unknown model, or the reference on one device fails.
    """
    names = tuple(ZOO) if models is None else tuple(models)
    for name in names:
        if name not in MODELS:
            raise AutoDDLError(f"model {name!r}: the zoo has {', '.join(MODELS)}")
    folder.mkdir(parents=True, exist_ok=True)
    total, found = len(names) * len(meshes) * plans, []
    jobs = [(name, number) for name in names for number in range(seed, seed + plans)]
    for mesh in [f"{mesh}{IN_HALVES}" for mesh in meshes] if duplex else meshes:
        for result in _plans(folder, mesh, jobs):
            found.append(result)
            if progress is not None:
                progress(len(found), total)
    return ExecutionReport(found)


def _plans(folder: Path, mesh: str, jobs: Sequence[tuple[str, int]]) -> Iterator[Row]:
    """Yield the runs of models and seeds on one mesh, those of earlier calls first."""
    known = _known(folder, mesh, jobs)
    yield from (known[job] for job in jobs if job in known)
    missing = [job for job in jobs if job not in known]
    _make_references(folder, dict.fromkeys(model for model, _ in missing))
    while missing:
        batch = missing[:PLANS_AT_ONCE]
        wanted = ["plans", str(folder), mesh, *(f"{model}:{seed}" for model, seed in batch)]
        error = started(_MODULE, wanted, RANKS, PLAN_LIMIT_S * len(batch))
        fresh = _known(folder, mesh, batch)
        yield from (fresh[job] for job in batch if job in fresh)
        missing = [job for job in missing if job not in fresh]
        if error and missing and missing[0] in batch:
            model, seed = missing.pop(0)
            yield rows_of(folder, model, mesh).add(plan_row(model, mesh, seed, error=error))


def _known(folder: Path, mesh: str, jobs: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Row]:
    models = dict.fromkeys(model for model, _ in jobs)
    rows = [row for model in models for row in rows_of(folder, model, mesh).rows]
    return {(row["model"], row["seed"]): row for row in rows}


def rows_of(folder: Path, model: str, mesh: str) -> RowStore:
    """Return the runs of a model on a mesh."""
    return RowStore(folder / f"{model}-{mesh}.jsonl".replace(" ", "-"))


def reference_of(folder: Path, model: str) -> Path:
    """Return the file with what one device does."""
    return folder / f"{model}.npz"


def plan_row(model: str, mesh: str, seed: int, *, error: str = "", **figures: Any) -> Row:
    """Return the row of a plan; of one that did not run all distances are NaN."""
    nothing = {"loss": math.nan, "weights": math.nan, "moved": math.nan, "changed": 0}
    nothing |= {"redistributions": 0, "ordered": 0, "more": 0, "seconds": 0.0}
    return {"model": model, "mesh": mesh, "seed": seed, **nothing, **figures, "error": error}


def _make_references(folder: Path, models: Iterable[str]) -> None:
    missing = [model for model in models if not reference_of(folder, model).exists()]
    wanted, limit_s = ["reference", str(folder), *missing], PLAN_LIMIT_S * len(missing)
    error = started(_MODULE, wanted, 1, limit_s) if missing else ""
    if error:
        model = next((m for m in missing if not reference_of(folder, m).exists()), missing[-1])
        raise AutoDDLError(f"model {model}: does not train on one device: {error}")
