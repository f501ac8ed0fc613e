"""Exact search, coordinate descent, baselines on the zoo: `python -m experiments.zoo_search`.

Every model at a size of its paper, on every mesh: how far the bound of exact search is from its plan,
how much dearer coordinate descent's is, and how much longer the step of the best baseline takes than
that of the plan that `autoddl.optimize` chooses. Each finished row is a line of rows.jsonl at once: a
run that is cut off goes on from there. The exit code is 1 where coordinate descent misses its bar, or
a baseline is better than the plan.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search import builder, coordinate
from autoddl.search.baselines import assignments
from experiments.fig07_search import captured

SIZES = {
    "mlp": "toy",
    "alexnet": "alexnet",
    "vgg13": "vgg13",
    "vgg19": "vgg19",
    "resnet50": "resnet50",
    "wide_resnet": "wide_resnet_250m",
    "unet": "unet",
    "gpt": "gpt2_small",
    "bert": "bert_base",
    "dnabert": "dnabert",
    "vit": "vit_base",
    "t5": "t5_small",
    "llama": "llama_7b",
    "dlrm": "kaggle",
    "bert_moe": "base",
    "vit_moe": "base",
}
MESHES = "2,4,8,2x2,2x4,4x4"
ABOVE = 0.01  # of exact search's cost; coordinate descent may be so much dearer
LEVEL = 1e-9  # relative; steps within it take equally long
MEMORY = "1000TB"  # plans are compared by time alone
_EXIT_MISSED, _EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Row:
    """What became of one model on one mesh; seconds, and costs of a step in seconds.

    `cost_s` is the sum that searches minimise, `step_s` what a step takes with what overlaps in it.
    """

    model: str
    mesh: str
    profile: str
    fingerprint: str
    ops: int
    budget_s: float
    exact_s: float
    cost_s: float
    lower_bound_s: float
    coordinate_s: float
    coordinate_cost_s: float
    step_s: float
    baseline: str
    baseline_step_s: float
    solver: str

    @property
    def gap(self) -> float:
        """Return how far the bound is from the cost, relative to it."""
        return 1 - self.lower_bound_s / self.cost_s

    @property
    def above(self) -> float:
        """Return by how much coordinate descent's plan is dearer."""
        return self.coordinate_cost_s / self.cost_s - 1

    @property
    def slower(self) -> float:
        """Return by how much the best baseline's step takes longer than the plan's."""
        return self.baseline_step_s / self.step_s - 1

    @property
    def met(self) -> bool:
        """Tell whether neither bar is missed."""
        return self.above <= ABOVE and self.slower >= -LEVEL


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, print the table and write it as CSV; see the module for the exit code."""
    args = _parser().parse_args(argv)
    rows = []
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        for model in args.models.split(","):
            if model not in SIZES:
                raise AutoDDLError(f"--models: got {model!r}; there are {', '.join(SIZES)}")
        profile = profiles.load(args.profile)
        for model in args.models.split(","):
            program = captured(args.folder, f"{model}:{SIZES[model]}")
            for mesh in args.meshes.split(","):
                where = Mesh.parse(mesh, profile.levels)
                rows.append(row(args.folder, model, program, where, profile, args.budget))
    except AutoDDLError as error:
        print(f"zoo_search: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"zoo_search: interrupted; {args.folder} has what is done", file=sys.stderr)
        return _EXIT_INTERRUPTED
    report(rows, args.folder)
    return 0 if all(r.met for r in rows) else _EXIT_MISSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.zoo_search", description=__doc__)
    add = parser.add_argument
    add("--models", default=",".join(SIZES), help=f"some of {', '.join(SIZES)}; default all")
    add("--meshes", default=MESHES, help=f"default {MESHES}")
    add("--profile", default="a100-2x16", help="file or bundled name; default a100-2x16")
    add("--budget", type=float, default=20.0, help="seconds for each search; default 20")
    add("--folder", type=Path, default=Path("out/zoo_search"), help="state and results")
    return parser


def row(
    folder: Path, model: str, program: Program, mesh: Mesh, profile: Profile, budget: float
) -> Row:
    """Return the row of a model on a mesh, from the folder if it is there."""
    file = folder / "rows.jsonl"
    key = model, str(mesh), profile.name, program.fingerprint, budget
    for known in read(file):
        if (known.model, known.mesh, known.profile, known.fingerprint, known.budget_s) == key:
            return known
    found = planned(model, program, mesh, profile, budget)
    with file.open("a") as out:
        out.write(json.dumps(asdict(found)) + "\n")
    print(
        f"{model} [{mesh}]: exact {found.exact_s:.1f} s, gap {found.gap:.4%}; coordinate "
        f"{found.coordinate_s:.1f} s, {found.above:+.3%}; {found.baseline} {found.slower:+.2%}",
        flush=True,
    )
    return found


def read(file: Path) -> list[Row]:
    """Return the rows that a file has; a last line that was cut off is left out."""
    if not file.exists():
        return []
    lines = file.read_text().split("\n")
    return [Row(**json.loads(line)) for line in lines[:-1]]


def planned(model: str, program: Program, mesh: Mesh, profile: Profile, budget: float) -> Row:
    """Plan with exact search, and search with coordinate descent from the same starts."""
    begin = time.perf_counter()
    plan = autoddl.optimize(program, mesh=mesh, profile=profile, memory=MEMORY, budget=budget)
    exact_s = time.perf_counter() - begin
    problem = builder.build(program, mesh, profile)
    begin = time.perf_counter()
    descended = coordinate.search(problem, budget=budget, starts=assignments(problem).values())
    coordinate_s = time.perf_counter() - begin
    bound_s = plan.search["lower_bound_s"]
    best = min(plan.baselines, key=lambda estimate: estimate.step_s)
    return Row(
        model, str(mesh), profile.name, program.fingerprint, len(program.ops), budget,
        exact_s, bound_s / (1 - plan.search["gap"]), bound_s,
        coordinate_s, descended.cost_s,
        plan.estimate.step_s, best.name, best.step_s, plan.search["solver"],
    )  # fmt: skip


def report(rows: Sequence[Row], folder: Path) -> None:
    """Print the table and what was missed; write all of it as CSV."""
    table = Table(box=box.SIMPLE_HEAD)
    heads = (
        "model",
        "mesh",
        "ops",
        "exact s",
        "gap",
        "coordinate s",
        "above",
        "best baseline",
        "step",
    )
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number in (0, 1, 7) else "right")
    for r in rows:
        table.add_row(
            r.model, r.mesh, f"{r.ops:,}", f"{r.exact_s:.1f}", f"{r.gap:.4%}",
            f"{r.coordinate_s:.1f}", f"{r.above:+.2%}", r.baseline, f"{r.slower:+.2%}",
        )  # fmt: skip
    Console(width=130).print(table)
    worst, least = max(rows, key=lambda r: r.above), min(rows, key=lambda r: r.slower)
    proven = sum(r.gap <= LEVEL for r in rows)
    print(f"proven: {proven} of {len(rows)}, largest gap {max(r.gap for r in rows):.4%}")
    print(
        f"coordinate descent: {worst.above:+.2%} at most ({worst.model} on {worst.mesh}; at most "
        f"{ABOVE:+.0%}: {'met' if worst.above <= ABOVE else 'MISSED'})"
    )
    print(
        f"best baseline: {least.slower:+.2%} at least ({least.model} on {least.mesh}; never below 0: "
        f"{'met' if least.slower >= -LEVEL else 'MISSED'})"
    )
    file = folder / "zoo_search.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow([*(f.name for f in fields(Row)), "gap", "above", "slower"])
        writer.writerows([*asdict(r).values(), r.gap, r.above, r.slower] for r in rows)
    print(f"wrote {file}")


if __name__ == "__main__":
    sys.exit(main())
