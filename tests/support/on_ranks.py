"""Run scripts on ranks of OneFlow that live as long as the tests, and read what they saw.

To start ranks takes longer than most scripts do. So the first script for four ranks starts four, and the
next ones run in them one after the other (`in_turn.py`), each as if it had been started alone. Ranks that
fail are ended, and the next script gets new ones.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IN_TURN = Path(__file__).parent / "in_turn.py"
LIMIT_S = 1200.0  # a hundred times what a script takes: only one that hangs comes to it
KILLED = "was killed by SIG"
MOST_RANKS = 13  # that live at a time: each takes some hundred MB
_TURN_S = 1.0

Launched = Callable[..., Path]
"""Called with a script, its arguments and `ranks=…`; see `RankGroups.written`."""


def environment() -> dict[str, str]:
    """Return what lets a rank import this checkout's `autoddl`, `experiments` and `tests`."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


class RankError(Exception):
    """A script failed on ranks: what the launcher told, with the last lines of the rank."""


class RankGroup:
    """So many ranks that wait for scripts; they end when told to, and when this process ends."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self._errors = folder / "stderr"
        with socket.create_server(("127.0.0.1", 0)) as server, self._errors.open("wb") as errors:
            port, self._logs = str(server.getsockname()[1]), folder / "logs"
            options = ["--nproc-per-node", str(ranks), "--share-cores", "yes"]
            command = ["run", *options, "--log-dir", str(self._logs), str(IN_TURN), port]
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "autoddl", *command],
                env=environment(), stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
            self._lines: list[socket.socket] = []
            server.settimeout(_TURN_S)
            while len(self._lines) < ranks:
                with suppress(TimeoutError):
                    self._lines.append(server.accept()[0])
                if self._launcher.poll() is not None:
                    raise self._failure()

    def run(self, command: list[str], silent_s: float) -> None:
        """Run a script or `-m` module with arguments on all ranks.

        Raises:
            RankError: one failed, or none wrote anything for so long; all have ended.
        """
        with suppress(OSError):  # of one that has ended since; then its answer is missing
            for line in self._lines:
                line.sendall(json.dumps(command).encode() + b"\n")
        begin, waiting = time.time(), set(self._lines)
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], _TURN_S)
            if not all(_answers(line) for line in ready):
                raise self._failure()
            if time.time() > max(begin, *self._written_at()) + silent_s:
                self.end()
                raise RankError(f"{command}: hangs, no rank wrote anything for {silent_s:g} s")
            waiting.difference_update(ready)

    def _written_at(self) -> list[float]:
        return [path.stat().st_mtime for path in self._logs.iterdir()]

    def end(self) -> None:
        """End all ranks: to wait until the engine has taken its graphs apart takes seconds."""
        self._launcher.terminate()
        self._launcher.wait()
        for line in self._lines:
            line.close()

    def _failure(self) -> RankError:
        """Return what the launcher tells of a rank that has ended, which it sees by itself."""
        self._launcher.wait()
        self.end()
        return RankError(self._errors.read_text(errors="replace"))


def _answers(line: socket.socket) -> bool:
    """Tell whether a rank says that it is done; it does not where it has ended."""
    try:
        return line.recv(16) != b""
    except OSError:
        return False


class RankGroups:
    """Groups of 1, 2, 4 … ranks, started when first they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._groups: dict[int, RankGroup] = {}
        self._started = 0
        self._written: dict[tuple[object, ...], Path | RankError] = {}

    def __call__(self, *command: object, ranks: int, silent_s: float = LIMIT_S) -> None:
        """Run a script with arguments on so many ranks; once more if the engine crashes.

        OneFlow 0.9 crashes where a short call of a graph ends before the thread that made it has put it
        into its queue, which happens on crowded cores. A script that fails otherwise is not run again.

        Raises:
            RankError: it failed or hangs, with what the rank wrote last.
        """
        words = [str(word) for word in command]
        try:
            self._run(words, ranks, silent_s)
        except RankError as error:
            if KILLED not in str(error):
                raise
            self._run(words, ranks, silent_s)

    def started(self, module: str, arguments: Sequence[str], ranks: int, limit_s: float) -> str:
        """Run a module as `experiments.lib.ranks.started` does; return what went wrong, or nothing."""
        try:
            self("-m", module, *arguments, ranks=ranks)
        except RankError as error:
            return str(error)
        return ""

    def written(self, script: Path, *words: object, ranks: int) -> Path:
        """Return the folder that a script has written to, its first argument; it runs once.

        Raises:
            RankError: it failed.
        """
        run = (script, words, ranks)
        if run not in self._written:
            folder = self._folder / f"{len(self._written)}-{script.stem}"
            folder.mkdir()
            try:
                self(script, folder, *words, ranks=ranks)
            except RankError as error:
                self._written[run] = error
            else:
                self._written[run] = folder
        found = self._written[run]
        if isinstance(found, RankError):
            raise found
        return found

    def end(self) -> None:
        """End all ranks."""
        while self._groups:
            self._groups.popitem()[1].end()

    def _run(self, command: list[str], ranks: int, silent_s: float) -> None:
        group = self._groups.pop(ranks, None) or self._start(ranks)
        group.run(command, silent_s)
        self._groups[ranks] = group  # the last: those before have not been used for longer

    def _start(self, ranks: int) -> RankGroup:
        while self._groups and sum(self._groups) + ranks > MOST_RANKS:
            self._groups.pop(next(iter(self._groups))).end()
        self._started += 1
        folder = self._folder / f"group{self._started}-of-{ranks}"
        folder.mkdir()
        return RankGroup(ranks, folder)


def seen_by(ranks: int, folder: Path) -> list[Any]:
    """Return what every rank has written to rank0.json, rank1.json and so on."""
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
