"""autoddl beside OneFlow's built-in auto-parallel: `python -m experiments.against_auto_parallel`.

GPTs of 2, 12 and 24 layers on [4] and [2,2]: seconds to plan, and what both plans cost under the same
model. Everything finished is kept in the folder, so that an interrupted run goes on. The table is
printed and written to the document.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import autoddl
from autoddl.arguments import SEARCHES
from autoddl.engine.launch import launch
from autoddl.errors import AutoDDLError
from autoddl.make_plan import layout_of
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.memory import estimate
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.tasks import Layout
from autoddl.perfmodel.timeline import predict
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from experiments.against_auto_parallel.document import Row, Side, document, table
from experiments.against_auto_parallel.peer_plan import PeerPlan, beside, layout

_EXIT_BAD_INPUT, _EXIT_INTERRUPTED = 2, 130
DEFAULT_SEARCH = "exact"
# Few tokens for its width, so that data parallelism is not already the best plan.
SIZES = {
    "width": 256,
    "heads": 8,
    "sequence": 64,
    "vocabulary": 512,
    "batch": 8,
    "optimizer": "sgd",
}
LAYERS, MESHES = "2,12,24", "4,2x2"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0, or 2 for bad input."""
    args = _parser().parse_args(argv)
    try:
        if args.search not in SEARCHES:
            raise AutoDDLError(f"--search: got {args.search!r}; there are {', '.join(SEARCHES)}")
        profile = profiles.load(args.profile)
        args.folder.mkdir(parents=True, exist_ok=True)
        rows = [
            _row(args, profile, int(layers), mesh)
            for layers in args.layers.split(",")
            for mesh in args.meshes.split(",")
        ]
    except AutoDDLError as error:
        print(f"against_auto_parallel: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(
            f"against_auto_parallel: interrupted; {args.folder} has what is done", file=sys.stderr
        )
        return _EXIT_INTERRUPTED
    for line in table(rows):
        print(line)
    if args.document is not None:
        args.document.write_text(document(rows, _conditions(args, profile)))
        print(f"wrote {args.document}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.against_auto_parallel", description=__doc__
    )
    add = parser.add_argument
    add("--layers", default=LAYERS, help=f"default {LAYERS}")
    add("--meshes", default=MESHES, help=f"default {MESHES}")
    add("--profile", default="cpu-loopback", help="file or bundled name; default cpu-loopback")
    add("--search", default=DEFAULT_SEARCH, help=", ".join(SEARCHES))
    add("--budget", type=float, default=20.0, metavar="SECONDS", help="for our search; default 20")
    add("--limit", type=float, default=600.0, metavar="SECONDS", help="for OneFlow; default 600")
    add("--folder", type=Path, default=Path("out/against_auto_parallel"), help="state")
    add(
        "--document", type=Path, help="write the table there, too, as docs/against_auto_parallel.md"
    )
    return parser


def _conditions(args: argparse.Namespace, profile: Profile) -> list[str]:
    sizes = ", ".join(f"{name} {value}" for name, value in SIZES.items())
    return [
        f"GPT: {sizes}, float32",
        f"machine: {platform.machine()}, {os.cpu_count()} cores; OneFlow 0.9 on 4 CPU ranks",
        f"profile: {profile.name}; autoddl {autoddl.__version__}, search {args.search!r}; time limit for "
        f"OneFlow {args.limit:g} s",
    ]


def _row(args: argparse.Namespace, profile: Profile, layers: int, mesh: str) -> Row:
    """Let both plan one model on one mesh; what the folder has already is not done again."""
    name, head = f"{layers}-{mesh}", f"GPT of {layers} layers on mesh {mesh}"
    sizes = json.dumps({"layers": layers, **SIZES})
    mine, theirs = args.folder / f"{name}-{args.search}.json", args.folder / f"{name}-oneflow.json"
    if not mine.exists():
        print(f"{head}: autoddl …", flush=True)
        options = (args.profile, args.search, str(args.budget))
        error = _run(1, ["ours", sizes, mesh, str(mine), *options], args.limit)
        if error:
            raise AutoDDLError(f"{head}: {error}")
    if not _settled(theirs, args.limit):
        print(f"{head}: OneFlow …", flush=True)
        theirs.unlink(missing_ok=True)
        error = _run(4, ["peer", sizes, mesh, str(theirs)], args.limit)
        if error and not theirs.exists():
            theirs.write_text(json.dumps({"error": error, "limit_s": args.limit}))
    return row(layers, mine, theirs, profile)


def _settled(theirs: Path, limit_s: float) -> bool:
    """Tell whether OneFlow is done, or would again not be in that time."""
    return theirs.exists() and json.loads(theirs.read_text()).get("limit_s", limit_s) >= limit_s


def row(layers: int, mine: Path, theirs: Path, profile: Profile) -> Row:
    """Return what both planners did, from what the ranks wrote.

    Raises:
        AutoDDLError: the two planned different programs.
    """
    figures = json.loads(mine.read_text())
    plan, program = autoddl.load(beside(mine, "plan")), Program.load(beside(mine, "program"))
    ours = _side(
        program, plan.mesh, profile, layout_of(plan), figures["seconds"], figures["capture_s"]
    )
    known = Row(layers, str(plan.mesh), len(program.ops), ours, plan.search["gap"])
    data = json.loads(theirs.read_text())
    if "error" in data:
        return replace(known, error=data["error"])
    peer = PeerPlan.from_json(data)
    if peer.program.fingerprint != program.fingerprint:
        raise AutoDDLError(f"{theirs}: another program than that of {mine}; remove both files")
    states = layout(peer, plan.mesh, profile)
    side = _side(program, plan.mesh, profile, states, peer.build_s, peer.trace_s)
    return replace(known, peer=side, processor_s=peer.processor_s)


def _side(
    program: Program, mesh: Mesh, profile: Profile, states: Layout, seconds: float, graph_s: float
) -> Side:
    found = predict(program, mesh, profile, states)
    memory = estimate(program, mesh.shape, states).total
    cost = found.cost
    return Side(seconds, graph_s, cost.compute_s, cost.communication_s, found.step_s, memory)


def _run(ranks: int, arguments: Sequence[str], limit_s: float) -> str:
    """Run the ranks; return what went wrong, nothing if all went well."""
    done = launch(
        ["-m", "experiments.against_auto_parallel.ranks", *arguments],
        nproc_per_node=ranks,
        timeout_s=limit_s,
        env={"OMP_NUM_THREADS": "1"},
    )
    if done.timed_out:
        return f"not done after {limit_s:g} s"
    return done.message


if __name__ == "__main__":
    sys.exit(main())
