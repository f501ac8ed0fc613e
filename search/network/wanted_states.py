"""What a text says of a tensor's state, and which states of a mesh that means.

A state is compared with patterns, which have an entry or "anything" for each axis. On a mesh 2x4

    "S0,B"                  (S0, B) alone
    "S0"                    S0 on some axis: (S0, any), (any, S0)
    "B"                     whole: (B, B)
    "node: S0"              S0 over the nodes, anything over the rest: (S0, any)
    "S0|B"                  what one of these means
    "!S1", "!S0|S1"         all that it does not mean
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.state import B, NdSbp, Sbp

_BY_LEVEL = re.compile(r"\s*(\w+)\s*:\s*(.+?)\s*(?:,(?=\s*\w+\s*:)|$)")

Pattern = tuple[Sbp | None, ...]
"""An entry for each axis, None where any will do."""


class Wanted(NamedTuple):
    """The states that fit some pattern, or with `others` those that fit none."""

    patterns: tuple[Pattern, ...]
    others: bool = False

    def has(self, state: NdSbp) -> bool:
        """Tell whether a state is meant."""
        return self.others != (self._unlike(state) == 0)

    def distance(self, state: NdSbp) -> int:
        """Return how many axes of a state have to change, as far as one can tell, until it is meant."""
        return int(not self.has(state)) if self.others else self._unlike(state)

    def _unlike(self, state: NdSbp) -> int:
        """Return in how many axes a state is unlike the pattern that it fits best."""
        return min(
            sum(wanted not in (None, s) for wanted, s in zip(pattern, state, strict=True))
            for pattern in self.patterns
        )

    @property
    def with_strides(self) -> tuple[NdSbp, ...]:
        """Return the states that are told for all axes, some with a stride."""
        told = [[s for s in pattern if s is not None] for pattern in self.patterns]
        strided = [any(s.stride is not None for s in pattern) for pattern in told]
        pairs = zip(told, self.patterns, strided, strict=True)
        return tuple(NdSbp(some) for some, every, has in pairs if has and len(some) == len(every))

    @property
    def examples(self) -> tuple[NdSbp, ...]:
        """Return a state for each pattern: B where any entry will do."""
        return tuple(NdSbp(B if s is None else s for s in pattern) for pattern in self.patterns)


def wanted_states(text: str, mesh: Mesh) -> Wanted:
    """Return the states of a mesh that a text means; axes of one device have none to tell.

    Raises:
        AutoDDLError: it says nothing that a tensor on this mesh could be.
    """
    others = text.lstrip().startswith("!")
    patterns = [p for one in text.strip()[others:].split("|") for p in _patterns(one, mesh)]
    live = [size > 1 for size in mesh.shape]
    if not any(live):
        return Wanted(((None,) * mesh.ndim,))
    told = [tuple(s if n else None for s, n in zip(p, live, strict=True)) for p in patterns]
    return Wanted(tuple(dict.fromkeys(told)), others)


def _patterns(text: str, mesh: Mesh) -> Iterator[Pattern]:
    """Yield the patterns of a text without `!` and `|`."""
    levels = [axis.level for axis in mesh.axes]
    named = _BY_LEVEL.match(text)
    if named and not re.fullmatch(r"[SBP]\d*", named[1]):
        yield _by_level(text, levels)
        return
    state = NdSbp.parse(text, mesh if ":" in text else None)
    if len(state) > 1 or mesh.ndim == 1 or text.lstrip().startswith("("):
        yield tuple(NdSbp.parse(text, mesh))
    elif state == (B,):
        yield (B,) * mesh.ndim
    else:
        for axis in (axis for axis, size in enumerate(mesh.shape) if size > 1):
            yield tuple(state[0] if other == axis else None for other in range(mesh.ndim))


def _by_level(text: str, levels: list[str]) -> Pattern:
    """Return the pattern of entries for all axes of some levels."""
    found = {each[1]: each[2] for each in _BY_LEVEL.finditer(text)}
    for level, entry in found.items():
        if level not in levels:
            raise AutoDDLError(
                f"state {shown(text, 60)}: no level {shown(level, 30)}; the mesh has "
                f"{', '.join(dict.fromkeys(levels))}"
            )
        if len(NdSbp.parse(entry)) != 1:
            raise AutoDDLError(
                f"state {shown(text, 60)}: got {shown(entry, 30)} for level {level}; give one entry"
            )
    entries = {level: NdSbp.parse(entry)[0] for level, entry in found.items()}
    return tuple(entries.get(level) for level in levels)
