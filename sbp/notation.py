"""Two notations of states: "(B, S0, B)" by axis, and AutoDDL's "S0:(1,2), B:(2,2)" by device counts.

Device counts say how many of each level's devices a term takes; terms that stand further left take the
outer axes of a level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from autoddl.errors import AutoDDLError
from autoddl.sbp.axis_state import OWN, B, P, S, Sbp
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.notation_reader import NotationReader

_ALLOWED = "allowed are S<dim>, S(<dim>), S(<dim>, <stride>), B, B*, P, P(max), P(min)"


def read(text: str, mesh: Mesh | None) -> list[Sbp]:
    """Return the entries of a state in either notation; device counts need the mesh.

    Raises:
        AutoDDLError: not a state; the error quotes the text and marks the place.
    """
    reader = NotationReader("state", text, _ALLOWED)
    open_ = reader.take(r"\(") is not None
    entries: list[tuple[Sbp, tuple[int, ...] | None]] = [_entry(reader)]
    while reader.take(",") is not None:
        entries.append(_entry(reader))
    if open_:
        reader.need(r"\)", "')'")
    if not reader.done:
        raise reader.error("',' or the end expected")
    if any(counts is not None for _, counts in entries):
        return _laid_out(reader, entries, mesh)
    if mesh is not None and len(entries) != mesh.ndim:
        raise AutoDDLError(
            f"state {text!r}: {len(entries)} entries, mesh {mesh} has {mesh.ndim} axes; give one "
            "entry per axis"
        )
    return [sbp for sbp, _ in entries]


def counted(state: Sequence[Sbp], mesh: Mesh) -> str:
    """Return AutoDDL's notation of a state; `read` reads it back."""
    levels = [level.name for level in mesh.cluster.levels]
    rows = [
        [
            (sbp, math.prod(size for _, size in run))
            for sbp, run in itertools.groupby(
                (pair for pair, axis in zip(_pairs(state, mesh), mesh.axes, strict=True)
                 if axis.level == level),
                key=lambda pair: pair[0],
            )
        ]
        for level in levels
    ]  # fmt: skip
    terms = []
    while any(rows):
        sbp = _next_term(rows)
        taken = [row.pop(0)[1] if row and row[0][0] is sbp else 1 for row in rows]
        terms.append(f"{sbp}:({','.join(map(str, taken))})")
    return ", ".join(terms)


def _entry(reader: NotationReader) -> tuple[Sbp, tuple[int, ...] | None]:
    """Read one entry and, in AutoDDL's notation, its device counts per level."""
    kind = reader.need(r"[SBP](?![A-Za-z_])", "S, B or P")
    sbp = _split(reader) if kind == "S" else (_copied(reader) if kind == "B" else _partial(reader))
    if reader.take(":") is None:
        return sbp, None
    reader.need(r"\(", "'('")
    counts = [int(reader.need(r"[1-9]\d*", "a number of devices"))]
    while reader.take(",") is not None:
        counts.append(int(reader.need(r"[1-9]\d*", "a number of devices")))
    reader.need(r"\)", "')'")
    return sbp, tuple(counts)


def _copied(reader: NotationReader) -> Sbp:
    return B if reader.take(r"\*") is None else OWN


def _split(reader: NotationReader) -> Sbp:
    before, stride = reader.position, None
    bracket = reader.take(r"\(") is not None
    dim = int(reader.need(r"\d+", "a dim"))
    if bracket:
        if reader.take(",") is not None:
            stride = int(reader.need(r"[1-9]\d*", "a stride"))
        reader.need(r"\)", "')'")
    elif reader.text[before : before + 1].isspace():
        raise reader.error("a dim expected", before)
    return S(dim, stride).later(len(reader.take("'+") or ""))


def _partial(reader: NotationReader) -> Sbp:
    if reader.take(r"\(") is None:
        return P
    reduction = reader.need("sum|max|min", "sum, max or min")
    reader.need(r"\)", "')'")
    return Sbp("P", reduction=reduction)


def _pairs(state: Sequence[Sbp], mesh: Mesh) -> list[tuple[Sbp, int]]:
    """Return (entry, axis size); axes of one device count as B."""
    sizes = mesh.shape
    return [(s if n > 1 else B, n) for s, n in zip(state, sizes, strict=True)]


def _next_term(rows: Sequence[Sequence[tuple[Sbp, int]]]) -> Sbp:
    """Choose the next term: one that a level needs now and no level only later, if there is one."""
    heads = [row[0][0] for row in rows if row]
    return min(
        heads,
        key=lambda sbp: (
            sum(any(s is sbp for s, _ in row[1:]) and row[0][0] is not sbp for row in rows if row),
            heads.index(sbp),
        ),
    )


def _laid_out(
    reader: NotationReader, entries: Sequence[tuple[Sbp, tuple[int, ...] | None]], mesh: Mesh | None
) -> list[Sbp]:
    """Lay AutoDDL's terms on the axes of a mesh: within a level from the outermost axis inwards."""
    if mesh is None:
        raise AutoDDLError(f"state {reader.text!r}: device counts need a mesh; give one")
    levels = mesh.cluster.levels
    for sbp, counts in entries:
        if counts is None or len(counts) != len(levels):
            given = "none" if counts is None else str(len(counts))
            raise AutoDDLError(
                f"state {reader.text!r}: {sbp} has {given} device counts, cluster {mesh.cluster} has "
                f"{len(levels)} levels; give each term one count per level"
            )
    states: list[Sbp] = []
    for number, level in enumerate(levels):
        sizes = [axis.size for axis in mesh.axes if axis.level == level.name]
        wanted = [(sbp, counts[number]) for sbp, counts in entries if counts is not None]
        states += _on_level(reader, str(level), sizes, wanted)
    return states


def _on_level(
    reader: NotationReader, level: str, sizes: list[int], wanted: list[tuple[Sbp, int]]
) -> list[Sbp]:
    states, axes = [], list(sizes)
    for sbp, count in wanted:
        while axes and (count > 1 or axes[0] == 1):
            size = axes.pop(0)
            if count % size:
                raise _no_fit(reader, level, sizes)
            states.append(sbp if size > 1 else B)
            count //= size
        if count > 1:
            raise _no_fit(reader, level, sizes)
    if axes:
        raise _no_fit(reader, level, sizes)
    return states


def _no_fit(reader: NotationReader, level: str, sizes: Sequence[int]) -> AutoDDLError:
    return AutoDDLError(
        f"state {reader.text!r}: the counts in level {level} do not fill its axes {tuple(sizes)} from "
        "left to right; every term must take whole axes"
    )
