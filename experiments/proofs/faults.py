"""What training survives: `python -m experiments.proofs.faults`.

Ranks train and save a checkpoint after every step. Somewhere a rank, the launcher or both are killed, a
signal comes, a rank raises, or the disk is full. After each fault no process and no port of the job is
left, the last complete checkpoint loads, and the job, started again, ends with the losses of one that
nothing has disturbed, and with no file beside those of its checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from autoddl import store
from autoddl.checkpoint import sharded_files
from autoddl.errors import AutoDDLError
from autoddl.launch.ports import pick_port
from experiments.lib import cli
from experiments.lib.ranks import environment

NAME = "proofs.faults"
RANKS, STEPS = 2, 12
PAUSE_S = 0.1  # after each step, so that faults come at any place in steps and in saves
LIMIT_S = 60.0  # of a launch, which takes about 5 s
GONE_S = 10.0  # within which all processes have to be gone
MARK = "AUTODDL_FAULTS"
RAISES, FULL_DISK = "an exception in one rank", "a full disk"
DISK_BYTES = 1 << 20  # of which a checkpoint takes 27 KB
FAULTS = (
    "kill -9 of a rank", "kill -9 of the launcher", "kill -9 of everything", "SIGINT", "SIGTERM",
    RAISES, FULL_DISK,
)  # fmt: skip

Rows = dict[str, Any]


@click.command(help=__doc__)
@click.option("--times", default=5, show_default=True, help="each fault so many times")
@cli.listed("--faults", FAULTS, help="which ones")
@cli.folder("out/faults")
@click.option("--on-ranks", type=Path, hidden=True)
def command(times: int, faults: list[str], folder: Path, on_ranks: Path | None) -> int:
    """Launch the jobs, or be one of the ranks; a fault that is done already is not tried again."""
    if on_ranks is not None:
        train(on_ranks)
        return 0
    rows = folder / "faults.jsonl"
    rows.touch()
    done = {(row["fault"], row["number"]) for row in store.read(rows)[0].values()}
    whole = undisturbed(folder)
    for fault in faults:
        if fault == FULL_DISK and os.geteuid() != 0:
            print(f"{fault}: skipped, only root can mount a small one")
            continue
        for number in range(times):
            if (fault, number) not in done:
                row = {"fault": fault, "number": number, **tried(fault, number, folder, whole)}
                store.append(rows, row)
    return told([row for row in store.read(rows)[0].values() if row["fault"] in faults])


def told(rows: list[Rows]) -> int:
    """Print a line for each fault; return the exit code."""
    for fault in dict.fromkeys(row["fault"] for row in rows):
        own = [row for row in rows if row["fault"] == fault]
        steps = ", ".join(str(row["saved"]) for row in own)
        print(
            f"{fault}: {sum(not r['wrong'] for r in own)} of {len(own)} right, after steps {steps}"
        )
        for row in own:
            if row["wrong"]:
                print(f"    {row['number']}: {row['wrong']}")
    return cli.MISSED if any(row["wrong"] for row in rows) else 0


def undisturbed(folder: Path) -> list[float]:
    """Return the losses of a job that nothing disturbs."""
    own = folder / "whole"
    if len(losses(own)) < STEPS:
        own.mkdir(exist_ok=True)
        job = Job(own)
        code = job.process.wait(LIMIT_S)
        if code:
            raise AutoDDLError(f"the undisturbed job failed with {code}; see {own / 'output'}")
    return losses(own)


def tried(fault: str, number: int, folder: Path, whole: list[float]) -> Rows:
    """Let a job suffer a fault and go on; return after which step, and what was wrong then."""
    own = folder / f"{FAULTS.index(fault)}-{number}"
    own.mkdir(exist_ok=True)
    with disk(own / "checkpoint", small=fault == FULL_DISK):
        job = Job(own)
        job.wait_for_checkpoint()
        time.sleep(random.Random(f"{fault}{number}").uniform(0.0, 8 * PAUSE_S))
        inflict(fault, job, own)
        wrong = job.what_is_left()
        try:
            saved = whole_checkpoint(own / "checkpoint")
        except AutoDDLError as error:
            return {"saved": None, "wrong": str(error)}
        relieve(own)
        again = Job(own)
        code = again.process.wait(LIMIT_S)
        wrong = wrong or (f"started again it failed with {code}" if code else "")
        wrong = wrong or again.what_is_left() or files_beside(own / "checkpoint")
    found = losses(own)
    off = max((abs(a - b) for a, b in zip(found, whole, strict=False)), default=0.0)
    if len(found) != STEPS or off > 1e-5:
        wrong = wrong or f"{len(found)} losses, up to {off:.1e} off"
    return {"saved": saved, "wrong": wrong}


class Job:
    """A launcher and its ranks, all marked by a variable of their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, pick_port()
        self.mark = f"{folder.name}-{time.monotonic_ns()}"
        words = [
            "-m", "autoddl", "run", "--nproc-per-node", str(RANKS), "--timeout", str(LIMIT_S),
            "--master-port", str(self.port), "-m", "experiments.proofs.faults",
            "--on-ranks", str(folder),
        ]  # fmt: skip
        env = {**os.environ, **environment(), MARK: self.mark}
        with (folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, *words], env=env, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def wait_for_checkpoint(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not (self.folder / "checkpoint" / sharded_files.INDEX).exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AutoDDLError(f"no checkpoint came; see {self.folder / 'output'}")
            time.sleep(0.01)

    def processes(self) -> list[int]:
        """Return the job's processes that are there, ranks and all they have started among them."""
        mark, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ended = path.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if not ended and mark in path.joinpath("environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue  # it has ended meanwhile
        return found

    def ranks(self) -> list[int]:
        """Return the processes that train."""
        files = (self.folder / f"pid{rank}" for rank in range(RANKS))
        return [int(file.read_text()) for file in files]

    def what_is_left(self) -> str:
        """Wait until the job has ended; return what is there still, nothing if all is gone."""
        try:
            self.process.wait(2 * GONE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "the launcher did not end"
        deadline = time.monotonic() + GONE_S
        while left := self.processes():
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                return f"{len(left)} processes were left"
            time.sleep(0.02)
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                own.bind(("", self.port))
            except OSError as error:
                return f"port {self.port}: {error.strerror}"
        return ""


def inflict(fault: str, job: Job, folder: Path) -> None:
    """Let a fault happen."""
    if fault == "kill -9 of a rank":
        os.kill(job.ranks()[-1], signal.SIGKILL)
    elif fault == "kill -9 of the launcher":
        job.process.kill()
    elif fault == "kill -9 of everything":
        for pid in job.processes():
            os.kill(pid, signal.SIGKILL)
    elif fault in ("SIGINT", "SIGTERM"):
        job.process.send_signal(signal.Signals[fault])
    elif fault == RAISES:
        (folder / "raise").touch()
    else:
        with (folder / "checkpoint" / "filler").open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break


def relieve(folder: Path) -> None:
    """Take away what a fault has put there."""
    (folder / "raise").unlink(missing_ok=True)
    (folder / "checkpoint" / "filler").unlink(missing_ok=True)


@contextmanager
def disk(folder: Path, *, small: bool) -> Iterator[None]:
    """Have a folder, on a small disk of its own if asked for."""
    folder.mkdir(exist_ok=True)
    if not small:
        yield
        return
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def whole_checkpoint(folder: Path) -> int:
    """Read all of a checkpoint; return after how many steps it was saved.

    Raises:
        AutoDDLError: it is not whole.
    """
    index = sharded_files.read_index(folder)
    for name in index.tensors:
        sharded_files.read(folder, index, name)
    return index.facts.steps


def files_beside(folder: Path) -> str:
    """Return which files a folder has beside its checkpoint's; nothing if there are none."""
    own = {sharded_files.INDEX, *sharded_files.read_index(folder).files}
    other = sorted(path.name for path in folder.iterdir() if path.name not in own)
    return f"files beside the checkpoint: {', '.join(other)}" if other else ""


def losses(folder: Path) -> list[float]:
    """Return the losses by steps; a step that was done again has the later one."""
    path = folder / "losses.jsonl"
    found = dict(store.read(path)[0].values()) if path.exists() else {}
    return [found[number] for number in sorted(found)]


def train(folder: Path) -> None:
    """Train on this rank, from the checkpoint on if there is one."""
    import numpy as np
    import oneflow as flow
    from oneflow import nn

    import autoddl
    from experiments.models import build
    from experiments.models.training import seed_weights

    rank, checkpoint = flow.env.get_rank(), folder / "checkpoint"
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    graph, inputs = build("mlp", "toy", optimizer="adam")
    seed_weights(graph.model.to(nn.Module), 1)
    if (checkpoint / sharded_files.INDEX).exists():
        step = autoddl.resume(checkpoint, graph, *inputs)
        first = sharded_files.read_index(checkpoint).facts.steps
    else:
        plan = autoddl.optimize(graph, *inputs, mesh=str(RANKS), search="ZeRO 2")
        step, first = plan.apply(graph), 0
    rng: Callable[[int], Any] = np.random.default_rng
    for number in range(first, STEPS):
        batch = [
            flow.tensor(rng(number).normal(size=tuple(x.shape)).astype(np.float32)) for x in inputs
        ]
        loss = float(step(*batch).to_local().numpy())
        if rank == 0:
            store.append(folder / "losses.jsonl", [number, loss])
        step.save(checkpoint)
        time.sleep(PAUSE_S)
        if rank == RANKS - 1 and (folder / "raise").exists():
            raise RuntimeError("as asked for")


if __name__ == "__main__":
    sys.exit(cli.run(command, NAME))
