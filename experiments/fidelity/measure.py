"""Have a testbed there, run ranks on it, calibrate it: its folder has its profile.

What is measured at once is spoilt, so one measurement of a user runs at a time on a machine.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from experiments.fidelity.workload import Bed
from experiments.lib import ranks
from experiments.testbed import Testbed

CALIBRATION_LIMIT_S = 1800.0
QUICK_LINKS = ("--quick", "--maxbytes", "1M")
NO_LINK = "1gbit"  # of a node alone

Run = Callable[[str, Sequence[str], float], str]
"""Run a module with arguments on every rank within a time limit; return what went wrong, or nothing."""


@contextmanager
def running(bed: Bed) -> Iterator[tuple[Run, Testbed | None]]:
    """Have a testbed there, or this machine as it is; yield what runs ranks on it."""
    with _alone():
        if bed.rate is None:
            yield lambda module, arguments, s: ranks.started(module, arguments, bed.ranks, s), None
            return
        with Testbed(nodes=bed.nodes, ranks=bed.ranks, rate=bed.rate, cpu=bed.cpu) as made:
            yield run_on(made), made


def run_on(made: Testbed) -> Run:
    """Return what runs ranks on a testbed."""

    def run(module: str, arguments: Sequence[str], limit_s: float) -> str:
        result = made.run(
            ["-m", module, *arguments], timeout_s=limit_s, env=ranks.environment(),
            stream_rank0=False,
        )  # fmt: skip
        return ranks.failure(result)

    return run


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until nothing else of this user is measured on this machine, and keep others waiting."""
    file = Path(tempfile.gettempdir()) / f"autoddl-measuring-{os.getuid()}.lock"
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another measurement runs on this machine; waiting for its end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def network_file(place: Path, quick: bool) -> Path:
    """Return the file of the profile in a testbed's folder; those of fewer sizes have their own."""
    return place / ("network-quick.json" if quick else "network.json")


def device(bed: Bed, folder: Path, *, quick: bool, known_only: bool = False) -> Path:
    """Return the file of a testbed's device in a folder of all; it is measured if it is not there yet.

    It is that of as many ranks on one node, which have the same shares of this machine's cores.

    Raises:
        AutoDDLError: it is not there and is not to be measured, or can't be.
    """
    share = f"-{bed.cpu}" if bed.cpu else ""
    file = folder / f"device-of-{bed.count}{share}{'-quick' if quick else ''}.json"
    if file.exists():
        return file
    if known_only:
        raise AutoDDLError(f"{file}: there is none")
    how = ["--nproc-per-node", str(bed.count), "-o", str(file), *(["--quick"] if quick else [])]
    node = Bed(bed.name, 1, bed.count, NO_LINK if bed.cpu else None, bed.cpu)
    with running(node) as (_, made):
        call(["autoddl.fit_device", *how], [0], made)
    return file


def calibrate(
    bed: Bed, made: Testbed | None, place: Path, arguments: Sequence[str], device: Path | None,
    *, quick: bool = False,
) -> Path:  # fmt: skip
    """Return the profile of a testbed in its folder `place`, measured if it is not there yet.

    Links are measured with these `arguments` of fit-network, or quickly. Unlike nodes have no one
    `device`: those of each kind are measured where they are.
    """
    place.mkdir(parents=True, exist_ok=True)
    network = network_file(place, quick)
    if not network.exists() and bed.kinds:
        _calibrate_kinds(bed, made, network, arguments)
    elif not network.exists():
        here = ["--nproc-per-node", str(bed.ranks), *(QUICK_LINKS if quick else arguments)]
        command = ["autoddl.fit_network", *here, "-o", str(network), "--device", str(device)]
        call(command, range(bed.nodes), made)
    return network


def _calibrate_kinds(
    bed: Bed, made: Testbed | None, network: Path, arguments: Sequence[str]
) -> None:
    """Measure links of each kind and of the pair, then the devices of each kind, into a profile.

    What an interrupted run has measured of links is there.
    """
    partial = network.with_name("partial.json")
    nodes = {kind: [n for n, k in enumerate(bed.kinds) if k == kind] for kind in bed.kinds}
    groups: dict[tuple[str, ...], list[int]] = {(k,): mine for k, mine in nodes.items()}
    groups[tuple(sorted(nodes))] = [mine[0] for mine in nodes.values()]
    known = {link.kinds for link in profiles.load(partial).links} if partial.exists() else set()
    into = ["--nproc-per-node", str(bed.ranks), "--into", str(partial)]
    for kinds, mine in groups.items():
        if kinds not in known:
            words = ["autoddl.fit_network", *into, "--kinds", ",".join(kinds), *arguments]
            call(words, mine, made)
    for kind, mine in nodes.items():
        call(["autoddl.fit_device", *into, "--kind", kind], mine[:1], made)
    partial.rename(network)


def call(command: Sequence[str], nodes: Sequence[int], made: Testbed | None) -> None:
    """Run a module on some nodes of a testbed, all at once, and wait for all of them; or here.

    Of several nodes each is told which one it is.

    Raises:
        AutoDDLError: it failed.
    """
    env = os.environ | ranks.environment()
    started = []
    for k, node in enumerate(nodes):
        line = [sys.executable, "-m", *command]
        if len(nodes) > 1:
            line += ["--nnodes", str(len(nodes)), "--node-rank", str(k)]
        if made is not None:
            if len(nodes) > 1:
                line += ["--master-addr", made.spec.address(nodes[0]), "--master-port", "29600"]
                line += ["--share-cores", "yes"]
            line = made.inside(node, line)
        started.append(subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL))
    codes = [process.wait(CALIBRATION_LIMIT_S) for process in started]
    if any(codes):
        raise AutoDDLError(f"calibration: {command[0]} ended with {codes}; see above")
