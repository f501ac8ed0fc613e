"""How soon each solver finds how good a plan (AutoDDL, figure 7): `python -m experiments.fig07_search`.

Every model is searched by every solver with several seeds. Relative run time is the cost of the best
plan so far divided by that of the best one that any solver found; lines are medians over the seeds,
bands the range. Each finished search is a line of runs.jsonl at once: a run that is cut off goes on
from there. Solvers for which a model is too large are named and left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import autoddl
from autoddl.errors import AutoDDLError, InfeasibleError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search import builder
from autoddl.search.problem import Problem
from autoddl.search.solvers import SOLVERS
from experiments.fig07_report import Run, Setting, report

# Name here: the zoo's model and its size.
MODELS = {
    "alexnet": ("alexnet", "alexnet"),
    "vgg": ("vgg13", "vgg13"),
    "gpt": ("gpt", "gpt2_small"),
    "dlrm": ("dlrm", "kaggle"),
}
# The paper's searches and exact; the ILP is a check of the others, fast is exact that ends earlier.
COMPARED = tuple(name for name in SOLVERS if name not in ("fast", "ilp"))
THIN = 1e-4  # relative; of a trace those improvements are kept that are larger
_EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 2, 130

Todo = Sequence[tuple[str, int]]
"""Pairs of a solver and a seed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, print the table, write CSV, JSON and PNG; exit code 2 for bad input."""
    args = _parser().parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    try:
        todo = [(solver, seed) for solver in _solvers(args.solvers) for seed in range(args.seeds)]
        for model in args.models.split(","):
            runs += _model(args, model, todo)
    except AutoDDLError as error:
        print(f"fig07_search: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"fig07_search: interrupted; {args.folder} has what is done", file=sys.stderr)
        return _EXIT_INTERRUPTED
    report(runs, args.folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.fig07_search", description=__doc__)
    add = parser.add_argument
    add("--models", default=",".join(MODELS), help=f"{', '.join(MODELS)}, or MODEL:SIZE of the zoo")
    add("--mesh", default="2x4", help="default 2x4")
    add("--seconds", type=float, default=20.0, help="for each search; default 20")
    add("--seeds", type=int, default=3, metavar="N", help="0 to N − 1; default 3")
    add(
        "--solvers",
        default=",".join(COMPARED),
        help=f"comma-separated; default {', '.join(COMPARED)}",
    )
    add("--profile", default="v100-8x", help="file or bundled name; default v100-8x")
    add("--folder", type=Path, default=Path("out/fig07"), help="state and results")
    return parser


def _solvers(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SOLVERS:
            raise AutoDDLError(f"--solvers: got {name!r}; there are {', '.join(SOLVERS)}")
    return names


def _model(args: argparse.Namespace, model: str, todo: Todo) -> list[Run]:
    """Return all runs of a model."""
    program = captured(args.folder, model)
    profile = profiles.load(args.profile, device_type=program.device)
    mesh = Mesh.parse(args.mesh, profile.levels)
    setting = Setting(model, program.fingerprint, str(mesh), profile.name, args.seconds)
    return run(
        args.folder / "runs.jsonl", setting, lambda: builder.build(program, mesh, profile), todo
    )


def captured(folder: Path, model: str) -> Program:
    """Return the program of a model, traced by OneFlow the first time and kept in the folder.

    Raises:
        AutoDDLError: no such model.
    """
    file = folder / "programs" / f"{model.replace(':', '-')}.json"
    if not file.exists():
        from experiments import models

        name, _, size = model.partition(":")
        if not size:
            name, size = MODELS.get(model, (model, "toy"))
        print(f"tracing {name}, size {size}", flush=True)
        with autoddl.abstract_parameters():
            graph, inputs = models.build(name, size)
        file.parent.mkdir(exist_ok=True)
        autoddl.capture(graph, *inputs).save(file)
    return Program.load(file)


def run(file: Path, setting: Setting, make: Callable[[], Problem], todo: Todo) -> list[Run]:
    """Return the searches of the problem that `make` returns; those that `file` lacks are added."""
    known = read(file, setting, todo)
    missing = [pair for pair in todo if not _settled(known, pair)]
    if not missing:
        return known
    problem = make()
    for pair in missing:
        if _settled(known, pair):
            continue
        known.append(_searched(setting, problem, *pair))
        with file.open("a") as out:
            out.write(json.dumps(asdict(known[-1])) + "\n")
        head = f"{setting.model} [{setting.mesh}] {pair[0]}, seed {pair[1]}"
        print(f"{head}, {len(problem.nodes)} nodes: {_outcome(known[-1])}", flush=True)
    return known


def read(file: Path, setting: Setting, todo: Todo) -> list[Run]:
    """Return those of the searches that a file has; a last line that was cut off is dropped."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    found = [_run(line) for line in whole.splitlines()]
    return [r for r in found if r.setting == setting and (r.solver, r.seed) in todo]


def _run(line: str) -> Run:
    data = json.loads(line)
    trace = tuple((t, cost) for t, cost in data.pop("trace"))
    return Run(Setting(**data.pop("setting")), trace=trace, **data)


def _settled(known: Iterable[Run], pair: tuple[str, int]) -> bool:
    """Tell whether a search is done; what is too large for a solver is so with every seed."""
    return any(r.solver == pair[0] and (r.seed == pair[1] or r.error) for r in known)


def _searched(setting: Setting, problem: Problem, solver: str, seed: int) -> Run:
    try:
        found = SOLVERS[solver](problem, budget=setting.budget_s, seed=seed)
    except InfeasibleError as error:
        return Run(setting, solver, seed, error=str(error))
    return Run(setting, solver, seed, found.evaluations, thinned(found.trace))


def _outcome(done: Run) -> str:
    if done.error:
        return f"left out: {done.error}"
    cost, spent_s = f"{done.cost_s * 1e3:.4g} ms a step", done.trace[-1][0]
    return f"{cost}, {done.evaluations:,} evaluations in {spent_s:.1f} s"


def thinned(trace: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the first pair, those that improve by more than 0.01 %, and the last one."""
    kept: list[tuple[float, float]] = []
    pairs = list(trace)
    for number, pair in enumerate(pairs):
        edge = number in (0, len(pairs) - 1)
        if edge or pair[1] < kept[-1][1] * (1 - THIN):
            kept.append(pair)
    return tuple(kept)


if __name__ == "__main__":
    sys.exit(main())
