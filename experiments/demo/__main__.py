"""The whole way on one machine in two acts: calibrate four CPU ranks, plan, train, compare.

Act one trains a GPT in one process and on the ranks, with equal losses. Act two is a GPT on which the
plan matters: ours, data parallelism, ZeRO 2 and Megatron take turns on the clock. `python -m
experiments.demo` (or `make demo`) writes the profile, plans, losses.png and steps.png to out/demo/, with
the numbers as JSON beside them. The last three lines tell how far losses are apart, how much faster ours
is, and where the pictures are. The exit code is 1 where losses differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from autoddl.cli.app import say
from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.mesh import Mesh
from experiments.demo import parity_act, speed_act, speed_report
from experiments.demo.demo_ranks import CONSOLE, DemoRanks, stage
from experiments.demo.gains import gain_text
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed, core_share
from experiments.lib import cli
from experiments.testbed import Testbed, network

LOOPBACK = Bed("loopback", 1, 4, None)
SHAPED = Bed("2x2-500mbit", 2, 2, "500mbit", core_share(4))
STEPS = 8
LINKS = ("--quick", "--stepfactor", "16")  # messages of 16 KiB, 256 KiB and 4 MiB
MOST_APART = 1e-4  # losses, by rounding


@click.command(help=__doc__)
@click.option("--mesh", help="a mesh of four devices; by default each plan has its best one")
@click.option(
    "--steps", type=click.IntRange(1), default=STEPS, show_default=True, help="of act one"
)
@click.option("--layers", type=click.IntRange(1), help="blocks of its GPT, instead of four")
@click.option("--profile", help="file or bundled name, instead of one that is measured")
@click.option("--testbed", is_flag=True, help=f"as root: two nodes with links of {SHAPED.rate}")
@click.option("--out", type=click.Path(path_type=Path), default="out/demo", show_default=True)
def command(
    mesh: str | None, steps: int, layers: int | None, profile: str | None, testbed: bool, out: Path
) -> int:
    """Calibrate, play both acts, tell what came of them; files go to `out`."""
    bed = SHAPED if testbed else LOOPBACK
    devices = {"mesh": _mesh(mesh, bed)} if mesh else {"cluster": bed.cluster}
    known = profiles.load(profile) if profile else None
    if testbed:
        network.require()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="autoddl-demo-") as name:
        folder = Path(name)
        device = None if known else _device(bed, folder)
        with measure.running(bed) as (run, made):
            known = known or _calibrated(bed, made, folder, device)
            known.save(out / "network.json")
            demo = DemoRanks(run, known, devices, out, folder)
            apart = parity_act.play(demo, steps, ["--layers", str(layers)] if layers else [])
            turns = speed_act.play(demo)
    speed_report.save(turns, out / "steps", known.name)
    CONSOLE.print(speed_report.table(turns))
    trained = speed_act.worst_loss(turns)
    say(
        f"parity: max |Δloss| = {apart:.2e} over {steps} steps, {trained:.2e} between plans of act two",
        f"speed: {gain_text(speed_act.gains(turns))}",
        f"pictures: {out / 'losses.png'}, {out / 'steps.png'}",
    )
    return 0 if max(apart, trained) <= MOST_APART else 1


def _mesh(text: str, bed: Bed) -> Mesh:
    """Return the mesh that is asked for.

    Raises:
        AutoDDLError: it is none, or not one of all ranks.
    """
    mesh = Mesh.parse(text)
    if mesh.size != bed.count:
        raise AutoDDLError(
            f"--mesh: got {shown(text)}, {mesh.size} devices; allowed are meshes of {bed.count}, as 2x2"
        )
    return mesh


def _device(bed: Bed, folder: Path) -> Path:
    with stage(f"time the ops of {bed.count} ranks"):
        return measure.device(bed, folder, quick=True)


def _calibrated(bed: Bed, made: Testbed | None, folder: Path, device: Path | None) -> Profile:
    with stage(f"time the collectives of {bed.count} ranks"):
        return profiles.load(measure.calibrate(bed, made, folder, LINKS, device))


if __name__ == "__main__":
    sys.exit(cli.run(command, "demo"))
