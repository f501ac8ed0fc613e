"""Two groups on one link: predicted against measured, `python -m experiments.fidelity.contention`.

On two nodes of two ranks, an all-reduce of 1 MB between the nodes is done by two groups at once, which
share the nodes' one link. A model that gives each group the whole link is off by 2×. The profile is
fitted to other message sizes; a second prediction uses only links of one group alone and how much groups
share, as for numbers of groups that were not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.redistribute import Redistributor
from autoddl.sbp.boxing import boxing
from autoddl.sbp.state import NdSbp
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed

BED = Bed("contention", 2, 2, "500mbit")
ELEMENTS = 1 << 18  # of float32: 1 MB
BEFORE, AFTER = "P,B", "B,B"
REPETITIONS = 40
_RANKS_LIMIT_S = 120.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, or, as `ranks FILE`, what its ranks do."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["ranks"]:
        _ranks(Path(given[1]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m experiments.fidelity.contention")
    parser.add_argument("--folder", type=Path, default=Path("out/contention"))
    args = parser.parse_args(given)
    try:
        _compare(args.folder)
    except AutoDDLError as error:
        print(f"contention: {error}", file=sys.stderr)
        return 2
    return 0


def _compare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "measured.json"
    sizes = [
        "-b",
        "128K",
        "-e",
        "8M",
        "-f",
        "8",
        "--collectives",
        "all-reduce",
        "--group-sizes",
        "2",
    ]
    with measure.running(BED) as (run, made):
        calibrate = [*sizes, "--mode", "eager", "--budget", "60"]
        profile = profiles.load(measure.calibrate(BED, made, folder, calibrate))
        if not result.exists():
            error = run(
                ["-m", "experiments.fidelity.contention", "ranks", str(result)], _RANKS_LIMIT_S
            )
            if error:
                raise AutoDDLError(error)
    measured_s = json.loads(result.read_text())["median_s"]
    wire_s = 2 * 4 * ELEMENTS * 8 / 500e6
    print(f"arithmetic, 2 × 1 MB over 500 Mbit/s: {wire_s * 1e3:.1f} ms")
    print(f"measured: {measured_s * 1e3:.1f} ms (median of {REPETITIONS})")
    alone = replace(profile, links=tuple(link for link in profile.links if link.groups == 1))
    for text, used in (("fitted", profile), ("from one group alone and the fitted sharing", alone)):
        seconds = predicted_s(used)
        print(f"predicted, {text}: {seconds * 1e3:.1f} ms ({seconds / measured_s - 1:+.0%})")


def predicted_s(profile: Profile) -> float:
    """Return the seconds of the all-reduce between the nodes, by both groups at once."""
    step = boxing(NdSbp.parse(BEFORE), NdSbp.parse(AFTER), (ELEMENTS,), BED.mesh.shape)
    assert step is not None
    return Redistributor(BED.mesh, profile).step_s(step, 4)


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
        file.write_text(
            json.dumps({"median_s": statistics.median(samples[2:]), "samples_s": samples})
        )


if __name__ == "__main__":
    sys.exit(main())
