"""The profile of a fast and a slow node, measured on both at once: each has its own cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration import kinds_profile
from autoddl.perfmodel.profile import ALIKE, Profile
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed
from experiments.lib import ranks
from experiments.testbed import Testbed


def calibrated(bed: Bed, made: Testbed, place: Path, links: Sequence[str], quick: bool) -> Profile:
    """Return the profile of a testbed in its folder; what is missing of it is measured.

    Ops are timed on both nodes at once, as they compute in a step; then links inside nodes, which only
    nodes of several ranks have, and those between them.

    Raises:
        AutoDDLError: something can't be measured.
    """
    whole, partial = place / "network.json", place / "partial.json"
    here = ["--nproc-per-node", str(bed.ranks)]
    if not whole.exists():
        ops = ["autoddl.fit_device", *here, "--quick", *(["--ops", "matmul"] if quick else [])]
        of_kind = _on_each(bed, made, place, "", lambda kind: [*ops, "--kind", kind])
        if bed.ranks > 1:
            inside = ["autoddl.fit_network", *here, *links]
            device = of_kind
            of_kind = _on_each(
                bed, made, place, "-links",
                lambda kind: [*inside, "--kinds", kind, "--device", device[kind]],
            )  # fmt: skip
        _joined({kind: profiles.load(file) for kind, file in of_kind.items()}).save(partial)
        between = ["autoddl.fit_network", *here, *links, "--kinds", ",".join(bed.kinds)]
        measure.call([*between, "--into", str(partial)], range(bed.nodes), made)
        partial.rename(whole)
    return profiles.load(whole)


def virtual_profile(profile: Profile) -> Profile:
    """Return a profile of ranks as fast as the last kind's, joined by the links of unlike ones."""
    (*_, slow) = profile.kinds
    return structs.replace(profile.part(profile.kinds), devices={ALIKE: profile.devices[slow]})


def _joined(of_kind: dict[str, Profile]) -> Profile:
    """Return one profile of those of kinds, each measured by itself."""
    (_, base), *others = of_kind.items()
    for kind, other in others:
        base = kinds_profile.joined(base, other, (kind,))
    return base


def _on_each(
    bed: Bed, made: Testbed, place: Path, what: str, command: Callable[[str], Sequence[object]]
) -> dict[str, Path]:
    """Return the file that a command's module writes on the node of each kind.

    Those that are missing are made all at once, as ranks compute.

    Raises:
        AutoDDLError: one failed.
    """
    env = {**os.environ, **ranks.environment()}
    files = {kind: place / f"{kind}{what}.json" for kind in bed.kinds}
    started = {}
    for node, (kind, file) in enumerate(files.items()):
        if not file.exists():
            line = [sys.executable, "-m", *map(str, command(kind)), "-o", str(file)]
            started[kind] = subprocess.Popen(
                made.inside(node, line), env=env, stdout=subprocess.DEVNULL
            )
    codes = [process.wait(measure.CALIBRATION_LIMIT_S) for process in started.values()]
    if any(codes):
        raise AutoDDLError(f"calibration: nodes {', '.join(started)} ended with {codes}; see above")
    return files
