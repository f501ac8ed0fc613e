"""HiDup's studies beside what the paper printed (paper.json): `python -m experiments.hidup`.

    bandwidths  two machines of four GPUs, 5 to 100 Gbit/s between (table 4, figures 8 and 11)
    scaling     2 to 64 GPUs in machines of eight, 9.71 Gbit/s between (figures 6 and 7, table 3)
    batches     8 to 128 sequences for each of 2 x 4 GPUs at 100 Gbit/s (figure 9)

Everything is predicted under V100s of 32 GB with NVLink; the paper measured. Expert parallelism stands
for DeepSpeed and FastMoE, data parallelism for DDP. `halves` are plans of two halves of the batch in
turn. Kept rows are used again. The exit code is 1 where a bar is missed. Figure 14 (planning
time) is made by experiments.bench.search.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import pandas as pd

import autoddl
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from experiments.hidup import moe_models as paper
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.varied_profiles import as_fast, at_rate

ROUNDED = 5e-4  # bars are in whole ms
COLUMNS: frames.Formats = {
    "model": "{}", "gpus": "{}", "gbit": "{:g}", "per_gpu": "{}", "halves": "{}", "step_s": "{:.4f}",
    "bound_s": "{:.4f}", "gap": "{:.1%}", "search_s": "{:.1f}", "compute_s": "{:.4f}", "best": "{}",
    "best_s": "{:.4f}", "data_s": "{:.4f}", "expert_s": "{:.4f}", "memory_gb": "{:.2f}",
    "data_gb": "{:.2f}", "expert_gb": "{:.2f}", "replicated": "{}", "partly": "{}", "cut": "{}",
    "whole_between": "{}",
}  # fmt: skip
COMPARED: frames.Formats = {
    "model": "{}", "what": "{}", "ours": "{:.3f}", "printed": "{}", "most": "{:g}", "met": "{}",
}  # fmt: skip


@dataclass(frozen=True)
class MoeCase:
    """A model on GPUs with so many Gbit/s between machines, and so many sequences for each GPU."""

    model: str
    gpus: int = paper.GPUS
    gbit: float = 100.0
    per_gpu: int = paper.PER_GPU
    halves: bool = False

    @property
    def mesh(self) -> str:
        """Return machines of eight GPUs, or of four where there are two of them."""
        if self.gbit and self.gpus == paper.GPUS:
            return "2x4"
        return (
            str(self.gpus) if self.gpus <= paper.GPUS else f"{self.gpus // paper.GPUS}x{paper.GPUS}"
        )


@dataclass(frozen=True)
class MoeStudy:
    """Cases, of which `x` is varied; a profile at their rate; seconds for each search."""

    x: str
    cases: Sequence[MoeCase]
    budget_s: float
    rated: Callable[[Profile, float], Profile] = at_rate


def _scaled(model: str, gpus: int) -> MoeCase:
    return MoeCase(model, gpus, 9.71 if gpus > paper.GPUS else 0.0)


RATES = {name: (10, 30, 100) for name in paper.MODELS} | {
    paper.MAIN: (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)
}
STUDIES = {
    # A search looks for plans in 0.7 of its time; with 13 s it keeps to the bar of 10.
    "bandwidths": MoeStudy("gbit", [
        MoeCase(model, gbit=gbit, halves=halves)
        for model in paper.MODELS for gbit in RATES[model] for halves in (False, True)
    ], 13.0),
    "scaling": MoeStudy(
        "gpus", [_scaled(m, gpus) for m in paper.MODELS for gpus in (2, 4, 8, 16, 32, 64)], 10.0, as_fast
    ),
    "batches": MoeStudy("per_gpu", [MoeCase(paper.MAIN, per_gpu=n) for n in (8, 16, 32, 64, 128)], 20.0),
}  # fmt: skip


@click.command(help=__doc__)
@cli.listed("--studies", STUDIES)
@cli.listed("--models", paper.MODELS)
@click.option("--points", default="", metavar="NUMBER,…",
              help="values of what is varied: Gbit/s, GPUs, sequences; default the paper's")  # fmt: skip
@click.option(
    "--budget", type=float, help="seconds for each search; default 10 to 20, by the study"
)
@cli.folder("out/hidup")
def command(
    studies: Sequence[str], models: Sequence[str], points: str, budget: float | None, folder: Path
) -> int:
    """Plan what is missing, print and write the tables."""
    kept, found = RowStore(folder / "rows.jsonl"), []
    wanted = {*map(float, filter(None, points.split(",")))}
    for name in studies:
        study = STUDIES[name]
        budget_s = budget or study.budget_s
        for case in study.cases:
            if case.model in models and (not wanted or getattr(case, study.x) in wanted):
                key = {"study": name, **asdict(case), "budget_s": budget_s}
                make = partial(row, study, case, budget_s, folder / "programs")
                found.append(kept.once(key, make))
                print("{study}: {model}, {gpus} GPUs, {gbit:g} Gbit/s, {per_gpu} each: {step_s:.4f} s"
                      .format(**found[-1]), flush=True)  # fmt: skip
    if not found:
        raise autoddl.AutoDDLError(f"--points {points}: none of these studies has such a case")
    return report(pd.DataFrame(found), folder)


def row(study: MoeStudy, case: MoeCase, budget_s: float, programs: Path) -> Row:
    """Return what is told of the plan of a case, beside the baselines that the paper has."""
    step = paper.program(case.model, programs, case.gpus, case.per_gpu)
    profile = study.rated(profiles.load(paper.PROFILE), case.gbit)
    begin = time.perf_counter()
    plan = autoddl.optimize(
        step, mesh=case.mesh, profile=profile, budget=budget_s, duplex=case.halves
    )
    seconds, estimate = time.perf_counter() - begin, plan.estimate
    baselines = {one.name: one for one in plan.baselines}
    best = min(baselines.values(), key=lambda one: one.step_s)
    found: Row = {
        "step_s": estimate.step_s, "bound_s": plan.search.lower_bound_s, "gap": plan.search.gap,
        "search_s": seconds, "compute_s": estimate.compute_s,
        "memory_gb": estimate.memory_bytes / 1e9, "best": best.name, "best_s": best.step_s,
    }  # fmt: skip
    for name in ("data", "expert"):
        known = baselines.get(f"{name} parallel")
        found[f"{name}_s"] = known.step_s if known else None
        found[f"{name}_gb"] = known.memory_bytes / 1e9 if known else None
    return found | paper.placement(plan)


def report(frame: pd.DataFrame, folder: Path) -> int:
    """Print and write the tables; return the exit code."""
    for name, mine in frame.groupby("study", sort=False):
        print(f"\n{name}\n{frames.text(mine, COLUMNS)}")
    beside = compared(frame)
    if len(beside):
        print(f"\nbeside the paper, and bars\n{frames.text(beside, COMPARED)}")
    frames.save(frame, folder, "hidup", compared=beside.to_dict("records"))
    return cli.MISSED if len(beside) and (beside.met == "MISSED").any() else 0


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what paper.json compares: the largest value among the plans of one batch, and its bar."""
    found = []
    for one in paper.PAPER["compared"]:
        mine = frame[(frame.study == one["study"]) & frame.model.str.startswith(one["model"])]
        mine = mine[~mine.halves].query(one["where"])
        if len(mine):
            ours, most = float(mine.eval(one["value"]).max()), one.get("most")
            met = "" if most is None else "met" if ours < most + ROUNDED else "MISSED"
            found.append(
                {**one, "printed": one.get("printed", ""), "ours": ours, "most": most, "met": met}
            )
    return pd.DataFrame(found)


if __name__ == "__main__":
    sys.exit(cli.run(command, "hidup"))
