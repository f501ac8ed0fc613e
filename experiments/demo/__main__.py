"""The whole way on one machine: calibrate, plan a GPT, train it on four ranks, compare.

`python -m experiments.demo` (or `make demo`) writes network.json, plan.json, losses.json and
losses.png to out/demo/. The last line tells how far the distributed losses are from one process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import autoddl
from autoddl.api import Plan
from autoddl.calibrate.device.op_timing import OpCampaign, OpSettings, job_for
from autoddl.calibrate.network.link_campaign import LinkCampaign
from autoddl.calibrate.network.link_cases import QUICK_SIZES, LinkSettings
from autoddl.calibrate.network.link_fits import fits_of, profile_of
from autoddl.calibrate.probe_launches import probe_job
from autoddl.engine import engines
from autoddl.launch.launcher import launch
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.report.plan_text import comparison
from experiments.lib import cli, figures

RANKS = 4
STEPS = 20
TIMED_STEPS = 8
TIME_LIMIT_S = 240.0
BASELINES = {"data parallel": "data_parallel.json", "Megatron": "megatron.json"}


@click.command(help=__doc__)
@click.option("--mesh", help=f"a mesh of {RANKS} devices; the best one by default")
@click.option("--steps", default=STEPS, show_default=True)
@click.option("--layers", type=click.IntRange(1), help="blocks of the GPT, instead of its four")
@click.option("--profile", help="file or bundled name, instead of one that is measured")
@click.option("--out", type=click.Path(path_type=Path), default="out/demo", show_default=True)
def command(
    mesh: str | None, steps: int, layers: int | None, profile: str | None, out: Path
) -> int:
    """Calibrate, plan, train and compare; files go to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console(width=120)
    known = _calibrated(console) if profile is None else profiles.load(profile)
    known.save(out / "network.json")
    plan_names = {"plan": "plan.json", **BASELINES}
    model = [] if layers is None else ["--layers", str(layers)]
    with _stage(console, f"capture and plan on {mesh or 'all meshes'}"):
        plan = _make_plans(mesh, known, out, plan_names, model)
    console.print(str(plan), markup=False, highlight=False)
    with _stage(console, f"train {steps} steps in one process"):
        single = _train(1, steps, out / "single.json", model)
    with _stage(console, f"train {steps} steps on {RANKS} ranks, then time the baselines"):
        files = [str(out / file) for file in plan_names.values()]
        ranks = _train(RANKS, steps, out / "ranks.json", [*model, *files])
    measured = dict(zip(plan_names, ranks["step_s"], strict=True))
    console.print(comparison(plan, measured))
    console.print(f"one process: measured step {single['step_s'][0] * 1e3:.1f} ms")
    losses = {"one process": single["losses"], f"{RANKS} ranks": ranks["losses"]}
    (out / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    _draw(losses, out / "losses")
    worst = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    console.print(f"wrote {', '.join(sorted(p.name for p in out.iterdir()))} to {out}")
    console.print(f"parity: max |Δloss| = {worst:.2e} over {steps} steps", highlight=False)
    return 0 if worst <= 1e-4 else 1


def _calibrated(console: Console) -> Profile:
    engine = engines.load("oneflow")
    with _stage(console, f"time the ops of {RANKS} ranks"):
        of_ops = OpSettings(RANKS, quick=True)
        ops = OpCampaign(of_ops)
        ops.run(job_for(engine, of_ops))
    with _stage(console, f"time the collectives of {RANKS} ranks"):
        of_links = LinkSettings(RANKS, sizes=QUICK_SIZES, quick=True, device=False)
        links = LinkCampaign(of_links)
        links.run(probe_job(engine, engine.probes.links, nproc_per_node=RANKS))
    fits = fits_of(links.timings, of_links.modes)
    return profile_of(fits, of_links, name="measured", device=ops.device)


@contextmanager
def _stage(console: Console, name: str) -> Iterator[None]:
    """Print what starts and how long it took."""
    console.print(f"[bold]{name} …[/bold]")
    begin = time.perf_counter()
    yield
    console.print(f"  {name}: {time.perf_counter() - begin:.1f} s")


def _make_plans(
    mesh: str | None, profile: Profile, out: Path, names: dict[str, str], model: list[str]
) -> Plan:
    """Capture the GPT in a process of its own, plan it here (without OneFlow), save all plans."""
    program = out / "program.json"
    _run_ranks(1, ["--capture", str(program), *model])
    cluster = None if mesh else str(RANKS)
    plan = autoddl.optimize(program, mesh=mesh, cluster=cluster, profile=profile)
    plan.save(out / names["plan"])
    for name in BASELINES:
        baseline = autoddl.optimize(program, mesh=plan.mesh, profile=profile, search=name)
        baseline.save(out / names[name])
    return plan


def _train(ranks: int, steps: int, result: Path, arguments: list[str]) -> dict[str, Any]:
    """Train in `ranks` processes and return what rank 0 wrote."""
    timed = str(min(steps, TIMED_STEPS))
    options = ["--steps", str(steps), "--timed", timed, "--result", str(result)]
    _run_ranks(ranks, [*options, *arguments])
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def _run_ranks(ranks: int, arguments: list[str]) -> None:
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}
    launch(
        ["-m", "experiments.demo.train", *arguments],
        nproc_per_node=ranks, timeout_s=TIME_LIMIT_S, env=threads, check=True,
    )  # fmt: skip


def _draw(losses: dict[str, list[float]], file: Path) -> None:
    from matplotlib.ticker import MaxNLocator

    figure, ((axis,),) = figures.panels(size=(7, 4))
    styles = [(figures.COLOURS[0], "-", 3.5), (figures.COLOURS[1], "--", 1.8)]
    for (name, values), (color, line, width) in zip(losses.items(), styles, strict=True):
        steps = range(1, len(values) + 1)
        axis.plot(steps, values, line, color=color, linewidth=width, label=name)
    axis.set(xlabel="training step", ylabel="cross-entropy per byte (nats)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("The same weights and data, one process and distributed")
    axis.legend()
    figures.save(figure, file)


if __name__ == "__main__":
    sys.exit(cli.run(command, "demo"))
