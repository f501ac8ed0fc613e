"""The whole way on one machine: calibrate, plan a GPT, train it on four ranks, compare.

`python -m experiments.demo` (or `make demo`) writes network.json, plan.json, losses.json and
losses.png to out/demo/. The last line tells how far the distributed losses are from one process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import autoddl
from autoddl import fit_device, fit_network
from autoddl.engine.launch import LaunchError, launch
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile import Profile
from autoddl.plan import Plan
from autoddl.table import comparison

RANKS = 4
STEPS = 20
TIMED_STEPS = 8
TIME_LIMIT_S = 240.0
BASELINES = {"data parallel": "data_parallel.json", "Megatron": "megatron.json"}


def main() -> int:
    """Run all stages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", help=f"a mesh of {RANKS} devices; the best one by default")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        return run(args.mesh, args.steps, args.out)
    except LaunchError as error:
        print(f"demo: {error}", *error.tail, sep="\n", file=sys.stderr)
        return 1
    except AutoDDLError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


def run(mesh: str | None, steps: int, out: Path) -> int:
    """Calibrate, plan, train and compare; files go to `out`."""
    console = Console(width=120)
    with _Stage(console, f"time the ops of {RANKS} ranks"):
        device = fit_device.measure(RANKS, quick=True)
    with _Stage(console, f"time the collectives of {RANKS} ranks"):
        profile = fit_network.measure(RANKS, quick=True, device=device)
        profile.save(out / "network.json")
    plan_names = {"plan": "plan.json", **BASELINES}
    with _Stage(console, f"capture and plan on {mesh or 'all meshes'}"):
        plan = _make_plans(mesh, profile, out, plan_names)
    console.print(str(plan), markup=False, highlight=False)
    with _Stage(console, f"train {steps} steps in one process"):
        single = _train(1, steps, out / "single.json", [])
    with _Stage(console, f"train {steps} steps on {RANKS} ranks, then time the baselines"):
        files = [str(out / file) for file in plan_names.values()]
        ranks = _train(RANKS, steps, out / "ranks.json", files)
    measured = dict(zip(plan_names, ranks["step_s"], strict=True))
    console.print(comparison(plan, measured))
    console.print(f"one process: measured step {single['step_s'][0] * 1e3:.1f} ms")
    losses = {"one process": single["losses"], f"{RANKS} ranks": ranks["losses"]}
    (out / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    _plot(losses, out / "losses.png")
    worst = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    console.print(f"wrote {', '.join(sorted(p.name for p in out.iterdir()))} to {out}")
    console.print(f"parity: max |Δloss| = {worst:.2e} over {steps} steps", highlight=False)
    return 0 if worst <= 1e-4 else 1


class _Stage:
    """Print what starts and how long it took."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name = console, name

    def __enter__(self) -> None:
        self.console.print(f"[bold]{self.name} …[/bold]")
        self.begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.console.print(f"  {self.name}: {time.perf_counter() - self.begin:.1f} s")


def _make_plans(mesh: str | None, profile: Profile, out: Path, names: dict[str, str]) -> Plan:
    """Capture the GPT in a process of its own, plan it here (without OneFlow), save all plans."""
    program = out / "program.json"
    _run_ranks(1, ["--capture", str(program)])
    plans: dict[str, Plan] = {}
    for name, file in names.items():
        if name == "plan":
            cluster = None if mesh else str(RANKS)
            plan = autoddl.optimize(program, mesh=mesh, cluster=cluster, profile=profile)
        else:
            plan = autoddl.optimize(program, mesh=plans["plan"].mesh, profile=profile, search=name)
        plans[name] = plan
        plan.save(out / file)
    return plans["plan"]


def _train(ranks: int, steps: int, result: Path, plans: list[str]) -> dict[str, Any]:
    """Train in `ranks` processes and return what rank 0 wrote."""
    options = ["--steps", str(steps), "--timed", str(TIMED_STEPS), "--result", str(result)]
    _run_ranks(ranks, [*options, *plans])
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def _run_ranks(ranks: int, arguments: list[str]) -> None:
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}
    launch(
        ["-m", "experiments.demo_ranks", *arguments],
        nproc_per_node=ranks,
        timeout_s=TIME_LIMIT_S,
        env=threads,
        check=True,
    )


def _plot(losses: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    styles = [("#0072B2", "-", 3.5), ("#D55E00", "--", 1.8)]  # colour-blind palette
    for (name, values), (color, line, width) in zip(losses.items(), styles, strict=True):
        steps = range(1, len(values) + 1)
        axes.plot(steps, values, line, color=color, linewidth=width, label=name)
    axes.set_xlabel("training step")
    axes.set_ylabel("cross-entropy per byte (nats)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("The same weights and data, one process and distributed")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
