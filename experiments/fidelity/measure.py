"""Make the plans, run them on a testbed, and keep every finished one in a file.

`FOLDER/MODEL.json` is a program; `FOLDER/BED/` holds the testbed's profile, `MODEL/` with the plans that
were made under it, and `MODEL.jsonl`, one line for each plan that was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoddl.engine.launch import launch
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.program import Program
from autoddl.search import builder
from experiments.fidelity import samples, workload
from experiments.fidelity.workload import Bed
from experiments.testbed import Testbed

PLAN_LIMIT_S = 240.0
STEP_LIMIT_S = 110.0
PASSES = 2  # apart in time, so that a slow phase of the machine does not hit both
CALIBRATION_LIMIT_S = 1800.0
_ROOT = Path(__file__).parents[2]

Run = Callable[[Sequence[str], float], str]
"""Run a command on every rank within a time limit; return what went wrong, or nothing."""


@dataclass(frozen=True)
class Measured:
    """The timed steps of one plan, in seconds; `error` says why there are none.

    `step_s` is their lower quartile, since other processes only ever add time; `communication_s` that
    of its redistributions by themselves, one after another.
    """

    model: str
    plan: str
    step_s: float = 0.0
    communication_s: float = 0.0
    samples_s: tuple[float, ...] = ()
    changed: int = 0
    error: str = ""


def prepare(place: Path, bed: Bed, program: Program, model: str, count: int) -> list[Path]:
    """Return the files of a model's plans on a testbed; those that are missing are made.

    `place` is the testbed's folder, whose profile tells what good plans are.
    """
    folder = place / model
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:02d}.json" for number in range(count)]
    if not all(file.exists() for file in files):
        problem = builder.build(program, bed.mesh, profiles.load(place / "network.json"))
        for file, (name, plan) in zip(files, samples.plans(problem, count), strict=True):
            file.with_suffix(".txt").write_text(name + "\n")
            plan.save(file)
    return files


def captured(file: Path, model: str, sizes: Mapping[str, Any] | None = None) -> Program:
    """Return the program of a model, traced in a process of its own the first time.

    `sizes` are those of the workload if not given.
    """
    if not file.exists():
        text = json.dumps(dict(workload.sizes(model) if sizes is None else sizes))
        command = ["-m", "experiments.fidelity.ranks", "capture", model, text, str(file)]
        error = _launch(command, 1, PLAN_LIMIT_S)
        if error:
            raise AutoDDLError(f"model {model}: can't be traced: {error}")
    return Program.load(file)


@contextmanager
def running(bed: Bed) -> Iterator[tuple[Run, Testbed | None]]:
    """Have a testbed there, or this machine as it is; yield what runs ranks on it."""
    if bed.rate is None:
        yield lambda command, limit_s: _launch(command, bed.ranks, limit_s), None
        return
    with Testbed(nodes=bed.nodes, ranks=bed.ranks, rate=bed.rate) as made:

        def run(command: Sequence[str], limit_s: float) -> str:
            result = made.run(command, timeout_s=limit_s, env=environment(), stream_rank0=False)
            return "" if result.ok else f"{result.message}: {' | '.join(result.tail[-3:])}"

        yield run, made


def measure(
    run: Run, place: Path, model: str, program: Path, files: Sequence[Path],
    progress: Callable[[], None], passes: int = PASSES,
) -> list[Measured]:  # fmt: skip
    """Time all plans once, then all again, where `place` has no line of it yet; return the results.

    `program` is the model's.
    """
    place.mkdir(parents=True, exist_ok=True)
    done = place / f"{model}.jsonl"
    sizes = json.dumps(workload.sizes(model))
    for number in range(1, passes + 1):
        for plan in files:  # each in its own processes: OneFlow never frees a graph's buffers
            if len(_lines(done, model, plan.stem)) >= number:
                continue
            command = ["-m", "experiments.fidelity.ranks", "time", model, sizes]
            error = run([*command, str(program), str(done), str(plan)], PLAN_LIMIT_S)
            if error and len(_lines(done, model, plan.stem)) < number:
                _append(done, {"plan": plan.stem, "error": error})
            progress()
    names = {file.stem for file in files}
    return [result for result in known(place, model) if result.plan in names]


def known(place: Path, model: str) -> list[Measured]:
    """Return what has been measured of a model's plans on a testbed, the quickest of all passes."""
    lines = _lines(place / f"{model}.jsonl", model)
    found = []
    for plan in sorted({line.plan for line in lines}):
        mine = [line for line in lines if line.plan == plan]
        best = min(mine, key=lambda line: (bool(line.error), line.step_s))
        sent = [line.communication_s for line in mine if not line.error]
        found.append(replace(best, communication_s=min(sent, default=0.0)))
    return found


def _lines(file: Path, model: str, plan: str | None = None) -> list[Measured]:
    """Return what a file has, of one plan or of all; a last line that was cut off is dropped."""
    if not file.exists():
        return []
    text = file.read_text()
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    lines = [json.loads(line) for line in text.splitlines()]
    return [
        Measured(model, **{**line, "samples_s": tuple(line.get("samples_s", ()))})
        for line in lines
        if plan in (None, line["plan"])
    ]


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")


def calibrate(bed: Bed, made: Testbed | None, place: Path, arguments: Sequence[str] = ()) -> Path:
    """Return the profile of a testbed, measured if it is not there yet."""
    place.mkdir(parents=True, exist_ok=True)
    network, device = place / "network.json", place / "device.json"
    here = ["--nproc-per-node", str(bed.ranks)]
    if not device.exists():
        ranks = str(bed.nodes * bed.ranks)  # all share this machine's cores
        call([["autoddl.fit_device", "--nproc-per-node", ranks, "-o", str(device)]], None)
    if not network.exists():
        command = ["autoddl.fit_network", *here, "-o", str(network), "--device", str(device)]
        nodes = []
        for k in range(bed.nodes):
            where = ["--nnodes", str(bed.nodes), "--node-rank", str(k)]
            if made is not None:
                where += ["--master-addr", made.spec.address(0), "--master-port", "29600"]
                where += ["--share-cores", "yes"]
            nodes.append([*command, *(where if bed.nodes > 1 else ()), *arguments])
        call(nodes, made)
    return network


def call(commands: Sequence[Sequence[str]], made: Testbed | None = None) -> None:
    """Run one module on each node, all at once, and wait for all of them."""
    env = {**os.environ, **environment()}
    lines = [[sys.executable, "-m", *command] for command in commands]
    if made is not None:
        lines = [made.inside(k, line) for k, line in enumerate(lines)]
    running = [subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL) for line in lines]
    codes = [process.wait(CALIBRATION_LIMIT_S) for process in running]
    if any(codes):
        raise AutoDDLError(
            f"calibration: {' '.join(commands[0][:1])} ended with {codes}; see above"
        )


def _launch(command: Sequence[str], ranks: int, limit_s: float) -> str:
    result = launch(
        command, nproc_per_node=ranks, timeout_s=limit_s, env=environment(), stream_rank0=False
    )
    return "" if result.ok else f"{result.message}: {' | '.join(result.tail[-3:])}"


def step_s(run: Run, model: str, sizes: Mapping[str, Any], plan: Path) -> float:
    """Return the seconds of a step of a plan, with stages or without.

    Raises:
        AutoDDLError: it could not be run.
    """
    with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
        result = Path(folder) / "line.json"
        command = ["-m", "experiments.fidelity.ranks", "step", model, json.dumps(dict(sizes)), "-"]
        error = run([*command, str(result), str(plan)], STEP_LIMIT_S)
        if error:
            raise AutoDDLError(f"{plan.stem}: {error}")
        seconds: float = json.loads(result.read_text())["step_s"]
    return seconds


def environment() -> dict[str, str]:
    """Return what ranks need to find these modules."""
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(_ROOT) + (os.pathsep + path if path else "")}
