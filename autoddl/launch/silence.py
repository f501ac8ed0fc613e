"""Notice the rank that all others wait for, and tell; stdlib only.

Ranks of a training step wait for each other: where one stops, all do, and nothing says which. Three
facts tell the one that is to blame, of ranks on this node:

* its process is stopped (SIGSTOP, a debugger);
* it mostly waits for a disk, or for memory that was swapped out, and no rank enters a call any more;
* others have entered a call that it has not (progress.py), for longer than such pauses were before.

While all compile or plan together none of these holds, and nothing is said.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoddl.launch.progress import Place

_LOOKS = 8  # in the seconds after which a rank is silent
_STOPPED, _BLOCKED = ("T", "t"), "D"  # states of threads in /proc
_SAME_PAUSE = 2  # a pause is like earlier ones up to so many times as long


@dataclass
class _Rank:
    """What was seen of a rank since it entered its last call."""

    calls: int = 0
    since_s: float = 0.0
    stopped_s: float | None = None  # since when it is
    looks: int = 0
    blocked: int = 0  # of these looks
    told: bool = False


class SilenceWatch:
    """Look at the ranks of a node now and then."""

    def __init__(self, silent_s: float, numbers: Sequence[int], now_s: float) -> None:
        self._silent_s = silent_s
        self._numbers = numbers  # global ones
        self._ranks = [_Rank(since_s=now_s) for _ in numbers]
        self._next_s = now_s
        self._moved_s: float | None = None  # when any rank entered a call
        self._pause_s = 0.0  # the longest so far between two such times

    def due(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def look(
        self, now_s: float, places: Sequence[Place], states: Mapping[int, str]
    ) -> Iterator[str]:
        """Yield a line for each rank that has turned out to be silent.

        Args:
            now_s: on the monotonic clock.
            places: of all ranks of this node.
            states: of the processes that run, see `state`, by local rank.
        """
        self._next_s = now_s + self._silent_s / _LOOKS
        self._note_calls(now_s, places)
        self._note_states(now_s, states)
        silent = {k: why for k in states if (why := self._halted(k, now_s, places[k]))}
        for k, why in (silent or self._behind(now_s, places, states)).items():
            rank = self._ranks[k]
            if not rank.told:
                rank.told = True
                yield f"rank {self._numbers[k]} {why}"

    def _note_calls(self, now_s: float, places: Sequence[Place]) -> None:
        moved = [k for k, place in enumerate(places) if place.calls != self._ranks[k].calls]
        for k in moved:
            self._ranks[k] = _Rank(places[k].calls, now_s)
        if moved:
            if self._moved_s is not None:
                self._pause_s = max(self._pause_s, now_s - self._moved_s)
            self._moved_s = now_s

    def _note_states(self, now_s: float, states: Mapping[int, str]) -> None:
        for k, state in states.items():
            rank = self._ranks[k]
            rank.looks += 1
            rank.blocked += state == _BLOCKED
            if state not in _STOPPED:
                rank.stopped_s = None
            elif rank.stopped_s is None:
                rank.stopped_s = now_s

    def _halted(self, k: int, now_s: float, place: Place) -> str:
        """Say since when and why a rank does not run, if so."""
        rank = self._ranks[k]
        if rank.stopped_s is not None and now_s - rank.stopped_s >= self._silent_s:
            seconds = now_s - rank.stopped_s
            return f"{_silent(seconds, place)}: its process is stopped, SIGCONT lets it go on"
        quiet_s = 0.0 if self._moved_s is None else now_s - self._moved_s
        if quiet_s >= self._silent_s and 2 * rank.blocked > rank.looks:
            return (
                f"{_silent(now_s - rank.since_s, place)}: it waits for a disk, or for memory that was "
                "swapped out"
            )
        return ""

    def _behind(
        self, now_s: float, places: Sequence[Place], running: Collection[int]
    ) -> dict[int, str]:
        """Say of ranks for how long they have not entered a call that others have."""
        longest_s = max(self._silent_s, _SAME_PAUSE * self._pause_s)
        if self._moved_s is None or now_s - self._moved_s < longest_s:
            return {}
        most = max(place.calls for place in places)
        ahead = [k for k, place in enumerate(places) if place.calls == most]
        numbers = ", ".join(str(self._numbers[k]) for k in ahead)
        others = f"rank {numbers} ({places[ahead[0]]})"
        return {
            k: f"{_silent(now_s - self._ranks[k].since_s, places[k])}; further is {others}"
            for k in running
            if places[k].calls < most
        }


def _silent(seconds: float, place: Place) -> str:
    return f"has been silent for {seconds:.0f} s ({place})"


def on_stderr(line: str) -> None:
    """Tell a line where there is no command that does."""
    sys.stderr.write(f"autoddl: {line}\n")
    sys.stderr.flush()


def state(pid: int) -> str:
    """Return the letter of a process's state as in /proc, "D" where any thread waits for a disk.

    "" where it is not known; Linux only.
    """
    own = _letter(Path(f"/proc/{pid}/stat"))
    if own in _STOPPED:
        return own
    with contextlib.suppress(OSError):  # it may end meanwhile
        if any(_letter(stat) == _BLOCKED for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            return _BLOCKED
    return own


def _letter(stat: Path) -> str:
    try:
        return stat.read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""
