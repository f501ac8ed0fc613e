"""Make the plans, run them on a testbed, and keep every finished one in a file.

`FOLDER/MODEL.json` is a program; `FOLDER/BED/` holds the testbed's profile, `MODEL/` with the plans that
were made under it, and `MODEL.jsonl`, one line for each run of a plan: the seconds of a step (their lower
quartile, since other processes only ever add time), those of its redistributions by themselves, one
after another, and how many signatures the engine changed; or an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.program import Program
from experiments.fidelity import samples, workload
from experiments.fidelity.workload import Bed
from experiments.lib import oneflow_problems as builder
from experiments.lib import ranks
from experiments.lib.frames import Row, RowStore
from experiments.testbed import Testbed

PLAN_LIMIT_S = 240.0
# Of a plan: so much and so many of its predicted steps, of which at least seven are run.
STEP_LIMIT_S, STEPS_LIMIT = 110.0, 20
PASSES = 2  # apart in time, so that a slow phase of the machine does not hit both
CALIBRATION_LIMIT_S = 1800.0
# At 80 Mbit/s a third was done after 6 minutes with the default's 4 MiB, with 1 MiB all of it after 7.
QUICK_LINKS = ("--quick", "--maxbytes", "1M")
STEPS = "experiments.fidelity.step_ranks"

Run = Callable[[str, Sequence[str], float], str]
"""Run a module with arguments on every rank within a time limit; return what went wrong, or nothing."""


def prepare(
    place: Path, bed: Bed, program: Program, model: str, count: int, profile: Path
) -> list[Path]:
    """Return the files of a model's plans on a testbed; those that are missing are made.

    `place` is the testbed's folder; its profile tells what good plans are.
    """
    folder = place / model
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:02d}.json" for number in range(count)]
    if not all(file.exists() for file in files):
        problem = builder.build(program, bed.mesh, profiles.load(profile))
        for file, (name, plan) in zip(files, samples.plans(problem, count), strict=True):
            file.with_suffix(".txt").write_text(name + "\n")
            plan.save(file)
    return files


@contextmanager
def running(bed: Bed) -> Iterator[tuple[Run, Testbed | None]]:
    """Have a testbed there, or this machine as it is; yield what runs ranks on it.

    Others of this user wait meanwhile: what is measured at once is spoilt.
    """
    with _alone():
        if bed.rate is None:
            yield lambda module, arguments, s: ranks.started(module, arguments, bed.ranks, s), None
            return
        with Testbed(nodes=bed.nodes, ranks=bed.ranks, rate=bed.rate, cpu=bed.cpu) as made:

            def run(module: str, arguments: Sequence[str], limit_s: float) -> str:
                result = made.run(
                    ["-m", module, *arguments], timeout_s=limit_s, env=ranks.environment(),
                    stream_rank0=False,
                )  # fmt: skip
                return ranks.failure(result)

            yield run, made


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


def measure(
    run: Run, place: Path, model: str, program: Path, files: Sequence[Path], passes: int = PASSES
) -> Iterator[Path]:
    """Time all plans once, then all again, where `place` has no line of it yet; yield each one done.

    `program` is the model's.
    """
    done = place / f"{model}.jsonl"
    sizes = json.dumps(workload.MODELS[model])
    for number in range(1, passes + 1):
        for plan in files:  # each in its own processes: OneFlow never frees a graph's buffers
            if len(RowStore(done).having(plan=plan.stem)) < number:
                arguments = ["time", model, sizes, str(program), str(done), str(plan)]
                error = run(STEPS, arguments, PLAN_LIMIT_S)
                kept = RowStore(done)
                if error and len(kept.having(plan=plan.stem)) < number:
                    kept.add({"plan": plan.stem, "error": error})
            yield plan


def known(place: Path, model: str) -> list[Row]:
    """Return what has been measured of a model's plans on a testbed, the quickest of all passes."""
    lines = RowStore(place / f"{model}.jsonl").rows
    found = []
    for plan in sorted({line["plan"] for line in lines}):
        mine = [line for line in lines if line["plan"] == plan]
        good = [line for line in mine if not line.get("error")]
        best = min(good, key=lambda line: float(line["step_s"]), default=mine[0])
        sent_s = min((line["communication_s"] for line in good), default=0.0)
        found.append({"error": "", **best, "communication_s": sent_s})
    return found


def network_file(place: Path, quick: bool) -> Path:
    """Return the file of the profile in a testbed's folder; those of fewer sizes have their own."""
    return place / ("network-quick.json" if quick else "network.json")


def calibrate(
    bed: Bed, made: Testbed | None, place: Path, arguments: Sequence[str] = (), *,
    quick: bool = False, device: Path | None = None,
) -> Path:  # fmt: skip
    """Return the profile of a testbed in its folder `place`, measured if it is not there yet.

    Links are measured with these `arguments` of fit-network, or quickly. The `device` is by default that
    of all testbeds beside it of as many ranks, which share this machine's cores as these do.
    """
    place.mkdir(parents=True, exist_ok=True)
    network = network_file(place, quick)
    device = device or place.parent / device_file(bed.nodes * bed.ranks, quick)
    if not device.exists():
        calibrate_device(device, bed.nodes * bed.ranks, quick=quick)
    if not network.exists():
        here = ["--nproc-per-node", str(bed.ranks), *(QUICK_LINKS if quick else ())]
        command = ["autoddl.fit_network", *here, "-o", str(network), "--device", str(device)]
        call([*command, *(() if quick else arguments)], range(bed.nodes), made)
    return network


def device_file(count: int, quick: bool) -> str:
    """Return the name of the file of a device while so many ranks share this machine's cores."""
    return f"device-of-{count}{'-quick' if quick else ''}.json"


def calibrate_device(file: Path, count: int, made: Testbed | None = None, *, quick: bool) -> None:
    """Measure what ops take on so many ranks, of this machine or of the one node of a testbed."""
    how = ["--quick"] if quick else []
    call(["autoddl.fit_device", "--nproc-per-node", str(count), "-o", str(file), *how], [0], made)


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


def step_s(run: Run, model: str, sizes: Mapping[str, Any], plan: Path) -> float:
    """Return the seconds of a step of a plan, with stages or without.

    Raises:
        AutoDDLError: it could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
        result = Path(folder) / "line.jsonl"
        arguments = ["step", model, json.dumps(dict(sizes)), "-", str(result), str(plan)]
        limit_s = STEP_LIMIT_S + STEPS_LIMIT * autoddl.load(plan).estimate.step_s
        error = run(STEPS, arguments, limit_s)
        if error:
            raise AutoDDLError(f"{plan.stem}: {error}")
        seconds: float = RowStore(result).rows[0]["step_s"]
    return seconds
