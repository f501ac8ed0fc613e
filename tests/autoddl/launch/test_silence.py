"""Which rank is silent: told from what each has entered and how its process is, by a clock of ours."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autoddl.launch import progress, supervise
from autoddl.launch.job import LaunchJob
from autoddl.launch.launcher import supervised
from autoddl.launch.progress import Place, Progress
from autoddl.launch.silence import SilenceWatch, state
from tests.support.rank_scripts import Write

STEP = "last in step()"


class Ranks:
    """Ranks 4, 5 and 6 of a job, looked at once a second; one is silent after 8 s."""

    def __init__(self) -> None:
        self.now_s = -1.0
        self.watch = SilenceWatch(8.0, (4, 5, 6), 0.0)
        self.lines: list[str] = []

    def go_on(
        self, seconds: int, calls: Sequence[int], states: str = "SSS", where: Sequence[str] = ()
    ) -> list[str]:
        """Return what is told in so many seconds; a rank with state "-" has ended."""
        places = [Place(n, w) for n, w in zip(calls, where or [STEP] * 3, strict=True)]
        running = {k: letter for k, letter in enumerate(states) if letter != "-"}
        found: list[str] = []
        for _ in range(seconds):
            self.now_s += 1.0
            assert self.watch.due(self.now_s) and not self.watch.due(self.now_s - 0.1)
            found += self.watch.look(self.now_s, places, running)
        return found


def trained(steps: int = 5) -> Ranks:
    ranks = Ranks()
    for step in range(1, steps + 1):
        assert ranks.go_on(1, [step] * 3) == []
    return ranks


def test_nothing_is_said_while_all_compile_or_plan_for_long() -> None:
    assert Ranks().go_on(1000, [0, 0, 0]) == []
    assert trained().go_on(1000, [5, 5, 5], "RSS") == []


@pytest.mark.parametrize("stopped", ["T", "t"])
def test_a_stopped_process_is_named_once_though_all_are_in_the_same_step(stopped: str) -> None:
    ranks, states = trained(), f"S{stopped}S"
    assert ranks.go_on(8, [5, 5, 5], states) == []
    assert ranks.go_on(1, [5, 5, 5], states) == [
        "rank 5 has been silent for 8 s (last in step()): its process is stopped, SIGCONT lets it go on"
    ]
    assert ranks.go_on(100, [5, 5, 5], states) == []
    assert ranks.go_on(1, [6, 6, 6]) == []
    assert len(ranks.go_on(10, [6, 6, 6], states)) == 1  # another silence


def test_a_process_that_is_stopped_now_and_then_is_not_silent() -> None:
    ranks = Ranks()
    assert [line for _ in range(20) for line in ranks.go_on(6, [0] * 3, "STS")
            + ranks.go_on(1, [0] * 3)] == []  # fmt: skip


def test_a_process_that_mostly_waits_for_a_disk_is_named_where_none_goes_on() -> None:
    ranks, found = trained(), list[str]()
    for states in ("SSD", "SSD", "SSS") * 3:
        found += ranks.go_on(1, [5, 5, 5], states)
    assert found == [
        "rank 6 has been silent for 8 s (last in step()): it waits for a disk, or for memory that was "
        "swapped out"
    ]
    assert trained().go_on(20, [5, 5, 5], "RRR") == []
    assert Ranks().go_on(20, [0, 0, 0], "DDD") == []  # reads its data, before the first call


def test_a_rank_that_has_not_entered_what_others_have_is_named() -> None:
    ranks, where = trained(), (STEP, "last in step.save()", STEP)
    assert ranks.go_on(8, [5, 6, 5], where=where) == []
    further = "further is rank 5 (last in step.save())"
    assert ranks.go_on(100, [5, 6, 5], where=where) == [
        f"rank 4 has been silent for 9 s (last in step()); {further}",
        f"rank 6 has been silent for 9 s (last in step()); {further}",
    ]


def test_a_rank_that_has_called_nothing_is_named() -> None:
    found = Ranks().go_on(20, [1, 1, 0], where=["last in optimize()"] * 2 + [""])
    assert found == [
        "rank 6 has been silent for 8 s (no call of autoddl yet); "
        "further is rank 4, 5 (last in optimize())"
    ]


def test_pauses_as_there_were_before_are_no_silence() -> None:
    ranks = trained()
    ranks.go_on(30, [5, 5, 5])  # a long step
    ranks.go_on(1, [6, 6, 6])
    assert ranks.go_on(60, [7, 6, 7]) == []  # one that reads its loss before it goes on
    assert len(ranks.go_on(30, [7, 6, 7])) == 1


def test_where_one_is_stopped_those_that_wait_for_it_are_not_blamed() -> None:
    (line,) = trained().go_on(50, [5, 5, 6], "TSS")
    assert line.startswith("rank 4 ")


def test_ranks_that_have_ended_are_not_silent() -> None:
    assert trained().go_on(50, [5, 6, 6], "-SS") == []


# ---- processes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def child(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process and wait until it has written a line."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_the_state_of_a_process() -> None:
    with child("import signal; print(flush=True); signal.pause()") as process:
        assert state(process.pid) in "SR"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert state(process.pid) == "T"
        process.send_signal(signal.SIGCONT)
    assert state(process.pid) == ""


class _Told(Exception):
    """Ends a launch."""


def test_a_launch_says_which_rank_is_silent(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    seconds = itertools.count()
    monkeypatch.setattr(supervise, "monotonic", lambda: next(seconds) if stopped.exists() else 0)
    script = write(
        f"""
import runpy
runpy.run_path({progress.__file__!r})["enter"]("step()")
if rank == 1:
    peer = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    peer.send(str(os.getpid()).encode() + b"\\n")
    os.kill(os.getpid(), signal.SIGSTOP)
peer, _ = server.accept()
stat = f"/proc/{{int(peer.makefile().readline())}}/stat"
while ") T" not in open(stat).read():
    time.sleep(0.01)
open({str(stopped)!r}, "w").close()
time.sleep(1000)
"""
    )
    told = list[str]()

    def tell(line: str) -> None:
        told.append(line)
        raise _Told

    with pytest.raises(_Told):
        supervised(LaunchJob((script,), 2, grace_s=0.1, silent_s=30.0), 0, 2, tell)
    (line,) = told
    assert re.fullmatch(
        r"rank 1 has been silent for 3\d s \(last in step\(\)\): its process .*", line
    )


# ---- what ranks share ----------------------------------------------------------------------------


def test_a_rank_tells_where_it_is_and_sees_who_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Progress.make(3) as shared:
        for local_rank in (0, 2):
            monkeypatch.setenv(progress.PROGRESS, shared.variable(local_rank))
            monkeypatch.setenv("RANK", str(6 + local_rank))
            own = runpy.run_path(progress.__file__)  # as another process has it
            own["enter"]("optimize()")
        own["enter"]("a name that is far too long for its slot, which holds fifty-six bytes")
        found = {rank: str(place) for rank, place in own["elsewhere"]().items()}
        assert found == {6: "last in optimize()", 7: "no call of autoddl yet"}
        own["end"]()
        first, second, third = shared.places()
    assert (first, second) == (Place(1, "last in optimize()"), Place(0, ""))
    assert third == Place(2, "at the end of its script")


@pytest.mark.parametrize("value", [None, "", "/none:0", "/dev/null:0", "/proc/self/stat:x"])
def test_without_a_launcher_of_ours_nothing_is_shared(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(progress.PROGRESS, raising=False)
    if value is not None:
        monkeypatch.setenv(progress.PROGRESS, value)
    own = runpy.run_path(progress.__file__)
    own["enter"]("step()")
    assert own["elsewhere"]() == {}
