"""The notation of clusters of unlike nodes: "3*v100x4 + 1*t4x4" is 3 nodes of 4 V100 and one of 4 T4.

Without a size each unit is one device: "2*fast + 2*slow". Nodes keep one size, and their order is that of
the text: "2*a + 1*b + 1*a" is a, a, b, a.
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


def parse(text: str) -> tuple[tuple[str, ...], int | None]:
    """Return the kind of each node, and how many devices each has; None where a node is a device.

    Raises:
        AutoDDLError: it is not the notation, or nodes are of unlike size; marks the place.
    """
    reader = NotationReader("cluster", text, ALLOWED)
    kinds: list[str] = []
    sizes: list[int | None] = []
    while True:
        begin = reader.position
        count = _number(reader, "a count of nodes")
        reader.need(r"\*", "'*'")
        kind = reader.need(_KIND, "a kind")
        size = _number(reader, "a size") if reader.take("x(?=[0-9])") is not None else None
        if len(kinds) + count > _MOST:
            raise reader.error(f"at most {_MOST} devices expected", begin)
        if sizes and size != sizes[0]:
            raise reader.error(
                f"{_devices(sizes[0])} per node expected, as before: nodes keep one size", begin
            )
        kinds += [kind] * count
        sizes.append(size)
        if reader.done:
            return tuple(kinds), sizes[0]
        reader.need(r"\+", "'+' or the end")


def text_of(kinds: Sequence[str], size: int | None) -> str:
    """Return the notation that `parse` reads back."""
    each = "" if size is None else f"x{size}"
    return " + ".join(f"{len([*same])}*{kind}{each}" for kind, same in itertools.groupby(kinds))


def check(kinds: Sequence[str], units: int, what: str) -> None:
    """Raise AutoDDLError where there is not one kind for each unit of the outermost level."""
    if kinds and len(kinds) != units:
        raise AutoDDLError(
            f"{what}: {len(kinds)} kinds for {units} nodes ({shown(', '.join(kinds), 100)}); give one "
            "for each, or none"
        )


def _number(reader: NotationReader, name: str) -> int:
    before = reader.position
    digits = reader.need(r"\d+", name)
    if len(digits) > len(str(_MOST)) or not 1 <= int(digits) <= _MOST:
        raise reader.error(f"a number from 1 to {_MOST} expected", before)
    return int(digits)


def _devices(size: int | None) -> str:
    return "one device" if size is None else f"{size} devices"
