"""The notation of clusters of unlike nodes: "3*v100x4 + 1*t4x4" is 3 nodes of 4 V100 and one of 4 T4.

Without sizes each unit is one device: "2*fast + 2*slow". Sizes may differ: "1*v100x8 + 1*v100x4". The
order of nodes is that of the text: "2*a + 1*b + 1*a" is a, a, b, a.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.notation_reader import NotationReader

ALLOWED = "allowed are counts of nodes with their kind and devices, such as '3*v100x4 + 1*t4x4'"
_KIND = r"[A-Za-z_][\w.-]{0,63}?(?=x\d+\s*(?:\+|$)|\s*(?:\+|$))"
_MOST = 1 << 20  # devices


def is_of_kinds(text: str) -> bool:
    """Tell whether a text is meant as this notation."""
    return "*" in text


def is_kind(text: str) -> bool:
    """Tell whether a text can name a kind."""
    return re.fullmatch(_KIND, text) is not None


def parse(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the kind of each node, and how many devices each has; no sizes where nodes are devices.

    Raises:
        AutoDDLError: it is not the notation; marks the place.
    """
    reader = NotationReader("cluster", text, ALLOWED)
    kinds: list[str] = []
    sizes: list[int] = []
    while True:
        begin = reader.position
        count = _number(reader, "a count of nodes")
        reader.need(r"\*", "'*'")
        kind = reader.need(_KIND, "a kind")
        size = _number(reader, "a size") if reader.take("x(?=[0-9])") is not None else None
        if len(kinds) + count > _MOST:
            raise reader.error(f"at most {_MOST} devices expected", begin)
        if kinds and (size is None) == bool(sizes):
            raise reader.error("a size for each kind expected, or for none", begin)
        kinds += [kind] * count
        sizes += [] if size is None else [size] * count
        if reader.done:
            return tuple(kinds), tuple(sizes)
        reader.need(r"\+", "'+' or the end")


def text_of(kinds: Sequence[str], sizes: Sequence[int]) -> str:
    """Return the notation that `parse` reads back."""
    nodes = zip(kinds, sizes, strict=True) if sizes else ((kind, None) for kind in kinds)
    return " + ".join(
        f"{len([*same])}*{kind}" + (f"x{size}" if size else "")
        for (kind, size), same in itertools.groupby(nodes)
    )


def check(kinds: Sequence[str], sizes: Sequence[int], levels: Sequence[int]) -> None:
    """Raise AutoDDLError where there is not one kind, and one size, for each outermost unit.

    `levels` are the sizes of a cluster's levels.
    """
    units = levels[0]
    if kinds and len(kinds) != units:
        raise AutoDDLError(
            f"cluster: {len(kinds)} kinds for {units} nodes ({shown(', '.join(kinds), 100)}); give one "
            "for each, or none"
        )
    if sizes and (len(sizes) != len(kinds) or levels[1:] != [max(sizes)] or min(sizes) < 1):
        raise AutoDDLError(
            f"cluster: {len(sizes)} sizes for {units} nodes ({shown(', '.join(map(str, sizes)), 100)}); "
            "give one >= 1 for each, beside its kind and two levels, the inner one of the largest"
        )


def _number(reader: NotationReader, name: str) -> int:
    before = reader.position
    digits = reader.need(r"\d+", name)
    if len(digits) > len(str(_MOST)) or not 1 <= int(digits) <= _MOST:
        raise reader.error(f"a number from 1 to {_MOST} expected", before)
    return int(digits)
