"""How far the ranks of a node are, in memory that they share with their launcher; stdlib only.

Each rank has a slot: how many calls of autoddl that all ranks make together it has entered, and where
it was last. To enter one takes some microseconds, so every step is one.

    progress.enter("step()")        # in a rank
    shared.places()                 # in its launcher: (Place(calls=17, where="last in step()"), …)
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from dataclasses import dataclass

PROGRESS = "AUTODDL_PROGRESS"
"""A variable of the ranks: the file to map and the rank's slot."""
_SLOT = struct.Struct("<q56s")  # of one cache line


@dataclass(frozen=True)
class Place:
    """Say where a rank was last."""

    calls: int
    where: str

    def __str__(self) -> str:
        return self.where or "no call of autoddl yet"


class Progress:
    """Map the slots of so many ranks; use it in a ``with``."""

    def __init__(self, fd: int, ranks: int) -> None:
        self._fd, self._ranks = fd, ranks
        self._map = mmap.mmap(fd, ranks * _SLOT.size)

    @classmethod
    def make(cls, ranks: int) -> Progress:
        """Make slots, all of them empty."""
        fd = os.memfd_create("autoddl-progress")
        os.ftruncate(fd, ranks * _SLOT.size)
        return cls(fd, ranks)

    def variable(self, local_rank: int) -> str:
        """Give a rank's PROGRESS: a file, there while this process holds it open, and the slot."""
        return f"/proc/{os.getpid()}/fd/{self._fd}:{local_rank}"

    def note(self, local_rank: int, where: str, *, calls: int = 0) -> None:
        """Note where a rank is, and how many more calls it has entered."""
        before, _ = _SLOT.unpack_from(self._map, local_rank * _SLOT.size)
        _SLOT.pack_into(self._map, local_rank * _SLOT.size, before + calls, where.encode()[:56])

    def places(self) -> tuple[Place, ...]:
        slots = _SLOT.iter_unpack(self._map[:])
        return tuple(Place(n, where.rstrip(b"\0").decode(errors="replace")) for n, where in slots)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._map.close()
        os.close(self._fd)


@functools.cache
def _own() -> tuple[Progress, int] | None:
    """Map this rank's slot; None where no launcher of ours shares one."""
    try:
        path, _, slot = os.environ[PROGRESS].partition(":")
        fd = os.open(path, os.O_RDWR)
        return Progress(fd, os.fstat(fd).st_size // _SLOT.size), int(slot)
    except (KeyError, OSError, ValueError):
        return None


def enter(call: str) -> None:
    """Note that this rank has entered a call, such as "step()", that all ranks make together."""
    _note(f"last in {call}", calls=1)


def end() -> None:
    """Note that this rank's script has ended."""
    _note("at the end of its script", calls=0)


def _note(where: str, *, calls: int) -> None:
    own = _own()
    if own is not None:
        shared, local_rank = own
        shared.note(local_rank, where, calls=calls)


def elsewhere() -> dict[int, Place]:
    """Return the ranks of this node that have not entered this rank's last call, by global rank."""
    own = _own()
    if own is None:
        return {}
    shared, local_rank = own
    first, places = int(os.environ["RANK"]) - local_rank, shared.places()
    here = places[local_rank].where
    return {first + k: place for k, place in enumerate(places) if place.where != here}
