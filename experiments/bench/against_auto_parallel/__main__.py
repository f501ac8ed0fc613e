"""autoddl beside OneFlow's built-in auto-parallel: `python -m experiments.bench.against_auto_parallel`.

GPTs of 2, 12 and 24 layers on [4] and [2,2]: seconds to plan, and what both plans cost under the same
model. Everything finished is kept in the folder, so that an interrupted run goes on. The table is
printed and written to the document.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pandas as pd

import autoddl
from autoddl.engine.oneflow.model.memory.device_memory import estimate
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.timeline import predict
from autoddl.planner.request import SEARCHES
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from experiments.bench.against_auto_parallel.peer_plan import PeerPlan, beside, layout
from experiments.lib import cli, frames, ranks
from experiments.lib.frames import Row

OURS, PEER = "autoddl", "OneFlow"
# Few tokens for its width, so that data parallelism is not already the best plan.
SIZES = {
    "width": 256, "heads": 8, "sequence": 64, "vocabulary": 512, "batch": 8, "optimizer": "sgd",
}  # fmt: skip
COLUMNS: frames.Formats = {
    "GPT layers": "{:.0f}", "mesh": "{}", "ops": "{:,.0f}", "planner": "{}", "s to plan (graph)": "{}",
    "own": "{:.1f}", "compute": "{:.1f}", "communication": "{:.1f}", "step": "{:.1f}",
    "GB per device": "{:.2f}", "ratio": lambda ratio: "1" if ratio == 1 else f"{ratio:.3f}",
}  # fmt: skip
_PREFACE = """<!-- Written by `python -m experiments.bench.against_auto_parallel`; do not edit. -->

# autoddl and OneFlow's built-in auto-parallel

OneFlow 0.9 plans while it builds an nn.Graph with `config.enable_auto_parallel(True)` (user settings of
SBP ignored, everything else as it is by default). Both plan the same training steps, one after the other
on the same machine; both plans are then priced by the same model (`autoddl.perfmodel`) under the same
profile. Of OneFlow's plan every state is taken from the job as it is, and redistributions go on the
cheapest path that autoddl knows.

- *s to plan*: from the model to the plan, building or capturing the graph included; in brackets, what the
  graph alone took. OneFlow plans on every rank at once, and the ranks share the cores of this machine:
  *own* are the seconds of processor time of rank 0 alone.
- *compute*, *communication*: the sums over all ops and boxings of a step, in ms; *step* is less
  where they overlap.
- *ratio*: what OneFlow's plan costs (compute + communication) over what ours costs.
"""


@click.command(help=__doc__)
@click.option("--layers", default="2,12,24", show_default=True)
@click.option("--meshes", default="4,2x2", show_default=True)
@click.option("--profile", default="cpu-loopback", show_default=True, help="file or bundled name")
@click.option("--search", default="exact", show_default=True, help=", ".join(SEARCHES))
@click.option("--budget", default=20.0, show_default=True, help="seconds for our search")
@click.option("--limit", default=600.0, show_default=True, help="seconds for OneFlow")
@click.option("--document", "file", type=click.Path(path_type=Path),
              help="write the table there, too, as docs/against_auto_parallel.md")  # fmt: skip
@cli.folder("out/against_auto_parallel")
def command(
    layers: str, meshes: str, profile: str, search: str, budget: float, limit: float,
    file: Path | None, folder: Path,
) -> None:  # fmt: skip
    """Let both plan what is missing; print the table."""
    if search not in SEARCHES:
        raise AutoDDLError(f"--search: got {search!r}; there are {', '.join(SEARCHES)}")
    known, found = profiles.load(profile), []
    for count in map(int, layers.split(",")):
        for mesh in meshes.split(","):
            mine = folder / f"{count}-{mesh}-{search}.json"
            theirs = folder / f"{count}-{mesh}-oneflow.json"
            _plan(count, mesh, mine, theirs, (profile, search, str(budget)), limit)
            found += rows(count, mine, theirs, known)
    print(table(found))
    sizes = ", ".join(f"{name} {value}" for name, value in SIZES.items())
    conditions = (
        f"GPT: {sizes}, float32",
        f"machine: {platform.machine()}, {os.cpu_count()} cores; OneFlow 0.9 on 4 CPU ranks",
        f"profile: {known.name}; autoddl {autoddl.__version__}, search {search!r}; time limit for "
        f"OneFlow {limit:g} s",
    )
    if file is not None:
        lines = "".join(f"- {line}\n" for line in conditions)
        file.write_text(f"{_PREFACE}\n{lines}\n{table(found)}\n")
        print(f"wrote {file}")


def _plan(
    layers: int, mesh: str, mine: Path, theirs: Path, options: Sequence[str], limit_s: float
) -> None:
    """Let both plan one model on one mesh; what the folder has already is not done again."""
    head = f"GPT of {layers} layers on mesh {mesh}"
    sizes = json.dumps({"layers": layers, **SIZES})
    if not mine.exists():
        print(f"{head}: autoddl …", flush=True)
        error = _run(1, ["ours", sizes, mesh, str(mine), *options], limit_s)
        if error:
            raise AutoDDLError(f"{head}: {error}")
    if not settled(theirs, limit_s):
        print(f"{head}: OneFlow …", flush=True)
        theirs.unlink(missing_ok=True)
        error = _run(4, ["peer", sizes, mesh, str(theirs)], limit_s)
        if error and not theirs.exists():
            theirs.write_text(json.dumps({"error": error, "limit_s": limit_s}))


def _run(count: int, arguments: Sequence[str], limit_s: float) -> str:
    module = "experiments.bench.against_auto_parallel.peer_ranks"
    return ranks.started(module, arguments, count, limit_s, {"OMP_NUM_THREADS": "1"})


def settled(theirs: Path, limit_s: float) -> bool:
    """Tell whether OneFlow is done, or would again not be in that time."""
    return theirs.exists() and json.loads(theirs.read_text()).get("limit_s", limit_s) >= limit_s


def rows(layers: int, mine: Path, theirs: Path, profile: Profile) -> list[Row]:
    """Return what both planners did, from what the ranks wrote; `error` says why OneFlow has no plan.

    Raises:
        AutoDDLError: the two planned different programs.
    """
    figures = json.loads(mine.read_text())
    plan, program = autoddl.load(beside(mine, "plan")), Program.load(beside(mine, "program"))
    key = {"layers": layers, "mesh": str(plan.mesh), "ops": len(program.ops)}
    ours = {
        **key, "planner": OURS, "seconds": figures["seconds"], "graph_s": figures["capture_s"],
        "gap": plan.search.gap, **_costs(plan.mesh, profile, plan.layout),
    }  # fmt: skip
    data = json.loads(theirs.read_text())
    if "error" in data:
        return [ours, {**key, "planner": PEER, "error": data["error"]}]
    peer = PeerPlan.from_json(data)
    if peer.program.fingerprint != program.fingerprint:
        raise AutoDDLError(f"{theirs}: another program than that of {mine}; remove both files")
    states = layout(peer, plan.mesh, profile)
    side = {
        **key, "planner": PEER, "seconds": peer.build_s, "graph_s": peer.trace_s,
        "own_s": peer.processor_s, **_costs(plan.mesh, profile, states),
    }  # fmt: skip
    return [ours, side]


def _costs(mesh: Mesh, profile: Profile, states: Layout) -> Row:
    found = predict(mesh, profile, states)
    return {
        "compute_s": found.cost.compute_s, "communication_s": found.cost.communication_s,
        "step_s": found.step_s, "memory_bytes": estimate(mesh.shape, states).total,
    }  # fmt: skip


def table(found: Sequence[Row]) -> str:
    """Return the Markdown table: two lines for each model and mesh."""
    frame = pd.DataFrame(found)
    ours, cost_s = frame.planner == OURS, frame.compute_s + frame.communication_s
    shown = pd.DataFrame({
        "GPT layers": frame.layers.where(ours), "mesh": frame.mesh.where(ours),
        "ops": frame.ops.where(ours), "planner": frame.planner,
        "s to plan (graph)": frame.seconds.map("{:.1f}".format) + frame.graph_s.map(" ({:.1f})".format),
        "own": frame.get("own_s"), "compute": 1e3 * frame.compute_s,
        "communication": 1e3 * frame.communication_s, "step": 1e3 * frame.step_s,
        "GB per device": frame.memory_bytes / 1e9, "ratio": cost_s / cost_s.where(ours).ffill(),
    })  # fmt: skip
    shown.loc[ours, "planner"] += (100 * frame.gap[ours]).map(" (gap {:.2g} %)".format)
    if "error" in frame:
        shown["s to plan (graph)"] = frame.error.fillna(shown["s to plan (graph)"])
    return frames.text(shown, COLUMNS, "pipe")


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.against_auto_parallel"))
