"""Two groups on one link: predicted against measured, `python -m experiments.fidelity.contention`.

On two nodes of two ranks, an all-reduce of 1 MB between the nodes is done by two groups at once, which
share the nodes' one link. A model that gives each group the whole link is off by 2×. The profile is
fitted to other message sizes; a second prediction uses only links of one group alone and how much groups
share, as for numbers of groups that were not measured.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import click
from msgspec import structs

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.boxing_prices import BoxingPrices
from autoddl.perfmodel.profile import Profile
from autoddl.sbp.boxing import boxing
from autoddl.sbp.state import NdSbp
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.lib import cli

BED = Bed("contention", 2, 2, "500mbit")
ELEMENTS = 1 << 18  # of float32: 1 MB
BEFORE, AFTER = "P,B", "B,B"
REPETITIONS = 40
_RANKS_LIMIT_S = 120.0


@click.command(help=__doc__)
@cli.folder("out/contention")
def command(folder: Path) -> None:
    """Calibrate and measure what is missing; print predictions beside it."""
    result = folder / "measured.json"
    sizes = "-b 128K -e 8M -f 8 --collectives all-reduce --group-sizes 2 --mode eager --budget 60"
    with measure.running(BED) as (run, made):
        profile = profiles.load(measure.calibrate(BED, made, folder, sizes.split()))
        if not result.exists():
            error = run("experiments.fidelity.contention", ["ranks", str(result)], _RANKS_LIMIT_S)
            if error:
                raise AutoDDLError(error)
    measured_s = json.loads(result.read_text())["median_s"]
    wire_s = 2 * 4 * ELEMENTS * 8 / 500e6
    print(f"arithmetic, 2 × 1 MB over 500 Mbit/s: {wire_s * 1e3:.1f} ms")
    print(f"measured: {measured_s * 1e3:.1f} ms (median of {REPETITIONS})")
    alone = structs.replace(
        profile, links=tuple(link for link in profile.links if link.groups == 1)
    )
    for text, used in (("fitted", profile), ("from one group alone and the fitted sharing", alone)):
        seconds = predicted_s(used)
        print(f"predicted, {text}: {seconds * 1e3:.1f} ms ({seconds / measured_s - 1:+.0%})")


def predicted_s(profile: Profile) -> float:
    """Return the seconds of the all-reduce between the nodes, by both groups at once."""
    step = boxing(NdSbp.parse(BEFORE), NdSbp.parse(AFTER), (ELEMENTS,), BED.mesh.shape)
    assert step is not None
    return BoxingPrices(BED.mesh, profile).step_s(step, 4)


def _ranks(file: Path) -> None:
    """Time the eager all-reduce; rank 0 writes the median."""
    import oneflow as flow

    kinds = {"P": flow.sbp.partial_sum, "B": flow.sbp.broadcast}
    before, after = ([kinds[s] for s in text.split(",")] for text in (BEFORE, AFTER))
    placement = flow.placement("cpu", [[0, 1], [2, 3]])
    x = flow.ones(ELEMENTS, placement=placement, sbp=before)
    samples = []
    for _ in range(REPETITIONS + 2):
        flow.comm.barrier()
        start = time.perf_counter()
        x.to_global(sbp=after).to_local()
        flow._oneflow_internal.eager.Sync()
        samples.append(time.perf_counter() - start)
    if flow.env.get_rank() == 0:
        found = {"median_s": statistics.median(samples[2:]), "samples_s": samples}
        file.write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["ranks"]:
        _ranks(Path(sys.argv[2]))
    else:
        sys.exit(cli.run(command, "fidelity.contention"))
