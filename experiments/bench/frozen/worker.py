"""The cases of one checkout: `PYTHONPATH=CHECKOUT python worker.py FOLDER` reads them line by line.

It is run by its path, so that older checkouts are asked alike: of what is not public it uses little. A
case is a JSON object on stdin, its figures one on stdout. Programs are captured once, in a process of
their own, and kept in the folder, which is one of this state of the code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

import autoddl
from experiments import models

Figures = dict[str, Any]
"""Numbers and texts by name; what a name means and how it is compared says compare.py."""


def main() -> None:
    """Answer every line until there is none; with MODEL SIZE OVERRIDES, capture that program only."""
    folder, *capture = sys.argv[1:]
    if capture:
        model, size, overrides = capture
        file = _file(Path(folder), model, size, overrides)
        _capture(model, size, json.loads(overrides), file)
        return
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed is no answer
    for line in sys.stdin:
        case = json.loads(line)
        try:
            figures = KINDS[case.pop("kind")](Path(folder), **case)
        except Exception as error:  # the next case may work
            figures = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(figures), file=answers, flush=True)


@cache
def _warm(folder: Path) -> None:
    """Plan a toy, so that no case waits for imports and compiled loops."""
    for options in ({"mesh": "2x2"}, {"mesh": "2", "pipeline": 2, "micro_batches": 2}):
        autoddl.optimize(_program(folder, "gpt", "toy"), budget=600.0, **options)


def planned(
    folder: Path, model: str, size: str, overrides: Mapping[str, Any] | None = None,
    device: str | None = None, baselines: bool = True, **options: Any,
) -> Figures:  # fmt: skip
    """Plan a model of the zoo; `options` are those of `autoddl.optimize`.

    Of a plan with stages the course of a step counts, too, as `Plan.trace` writes it.
    """
    _warm(folder)
    program = _program(folder, model, size, overrides, device)
    begin = time.perf_counter()
    plan = autoddl.optimize(program, **options)
    seconds = time.perf_counter() - begin
    figures = {"fingerprint": program.fingerprint, **_figures(plan), "seconds": seconds}
    for row in plan.baselines if baselines else ():
        figures[f"{row.name}: cost_s"] = row.compute_s + row.communication_s
        figures[f"{row.name}: step_s"] = row.step_s
        figures[f"{row.name}: memory_bytes"] = row.memory_bytes
    if "pipeline" in options:
        plan.trace(folder / "trace.json")
        events = json.loads((folder / "trace.json").read_text())
        spans = [e for e in events["traceEvents"] if "dur" in e]
        figures["spans"] = len(spans)
        figures["end_s"] = max(e["ts"] + e["dur"] for e in spans) * 1e-6
    return figures


def written(folder: Path, model: str, **options: Any) -> Figures:
    """Generate the script of a plan of a toy."""
    plan = autoddl.optimize(_program(folder, model, "toy"), **options)
    file = folder / "script.py"
    plan.codegen(file)
    text = file.read_text()
    return {"lines": len(text.splitlines()), "script": _digest(text)}


def memory(folder: Path, model: str, mesh: str, plans: int) -> Figures:
    """Compare predicted memory with OneFlow's own compilation of as many plans, rank by rank."""
    out = folder / "memory" / f"{model}-{mesh}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "experiments.fidelity.memory"]
    options = ["--models", model, "--meshes", mesh, "--plans", str(plans), "--folder", str(out)]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1) or not (out / "memory.csv").exists():
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-300:]}")
    frame = pd.read_csv(out / "memory.csv")
    # What is drawn depends on how choices are numbered.
    drawn = frame.plan.str.startswith(("refined ", "random "))
    sums = frame[~drawn][["oneflow", "predicted"]].sum()
    return {
        "plans": frame.plan.nunique(),
        "mean_error": frame.error.abs().mean(),
        "worst_error": frame.error.abs().max(),
        **{f"baselines: {name}": int(total) for name, total in sums.items()},
    }


KINDS: Mapping[str, Callable[..., Figures]]
KINDS = {"plan": planned, "script": written, "memory": memory}


def _figures(plan: Any) -> Figures:
    """Return what a plan says of itself."""
    estimate, search = plan.estimate, plan.search
    return {
        "cost_s": search.lower_bound_s / (1 - search.gap), "lower_bound_s": search.lower_bound_s,
        "gap": search.gap, "step_s": estimate.step_s, "idle_s": estimate.idle_s,
        "memory_bytes": estimate.memory_bytes, "devices": plan.devices, "mesh": str(plan.mesh),
        "solver": search.solver,
        "states": _digest("\n".join(f"{n} {s}" for n, s in sorted(plan.variables.items()))),
    }  # fmt: skip


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _program(
    folder: Path, model: str, size: str, overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Any:  # fmt: skip
    """Return a model's program, captured where the folder lacks it."""
    text = json.dumps(overrides or {})
    file = _file(folder, model, size, text)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, str(folder), model, size, text]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return _loaded(file, device)


@lru_cache(maxsize=1)  # the largest takes hundreds of megabytes
def _loaded(file: Path, device: str | None) -> Any:
    program = autoddl.Program.load(file)
    return program if device is None else replace(program, device=device)


def _file(folder: Path, model: str, size: str, overrides: str) -> Path:
    more = "" if overrides == "{}" else "-" + _digest(overrides)
    return folder / "programs" / f"{model}-{size}{more}.json"


def _capture(model: str, size: str, overrides: Mapping[str, Any], file: Path) -> None:
    with autoddl.abstract_parameters():
        graph, inputs = models.build(model, size, **overrides)
    part = file.with_name(f"{os.getpid()}.json")
    autoddl.capture(graph, *inputs).save(part)
    part.replace(file)


if __name__ == "__main__":
    main()
