"""Tables of parameters and buffers: those of equal numbered modules are written once.

Example: blocks.0.weight to blocks.3.weight with equal rows become BLOCK = {"weight": …} and
`**{f"blocks.{i}.{name}": sbp for i in range(4) for name, sbp in BLOCK.items()}`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autoddl.codegen.source import source_lines as layout
from autoddl.codegen.source.expression import indexed, quoted
from autoddl.codegen.source.identifiers import first_free
from autoddl.sbp.program.blocks import numbered, repeats

MIN_FOLDED = 2  # rows and modules, from which on a table of its own is shorter


@dataclass(frozen=True)
class VariableRow:
    """One variable: its name in the model, its state and shape as text, its stage if there are some."""

    name: str
    state: str
    shape: str
    stage: int | None = None


@dataclass(frozen=True)
class FoldedRows:
    """Rows "prefix i . rest" that are equal for all numbers from `first` to before `end`."""

    prefix: str
    first: int
    end: int
    stage: int | None
    rows: tuple[VariableRow, ...]  # their names are the rests


def variables(
    name: str, note: str, rows: Sequence[VariableRow], taken: Collection[str]
) -> list[str]:
    """Return the lines of the table `name`, after those of the modules that it repeats.

    Those have no name that is `taken`.
    """
    folds = _folds(rows)
    tables: dict[tuple[VariableRow, ...], str] = {}
    lines: list[str] = []
    for each in folds.values():
        if each.rows not in tables:
            table = _table_name(each.prefix, name, taken, tables.values())
            tables[each.rows] = table
            entries = [line for r in each.rows for line in _entry(r)]
            lines += layout.table(table, f"Of each of {_modules(each)}: state, # shape.", entries)
    written: list[str] = []
    for r in rows:
        fold = folds.get(r.name)
        if fold is None:
            written += _entry(r)
        elif r.name == f"{fold.prefix}{fold.first}.{fold.rows[0].name}":
            written += _folded(fold, tables[fold.rows])
    return [*lines, *layout.table(name, note, written)]


def _folds(rows: Sequence[VariableRow]) -> dict[str, FoldedRows]:
    """Return the fold of each row that is in one, by the row's name."""
    modules: dict[str, dict[int, list[tuple[VariableRow, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for r in rows:
        path = numbered(r.name)
        if path is not None and path.rest:
            modules[f"{path.stack}.".removeprefix(".")][path.layer].append((r, path.rest))
    folds: dict[str, FoldedRows] = {}
    for prefix, layers in sorted(modules.items()):
        bodies = {
            number: (
                found[0][0].stage,
                tuple(VariableRow(rest, r.state, r.shape) for r, rest in found),
            )
            for number, found in layers.items()
            if len({r.stage for r, _ in found}) == 1
        }
        for repeat in repeats(bodies, periods=(1,), least=MIN_FOLDED):
            stage, body = bodies[repeat.start]
            if len(body) >= MIN_FOLDED:
                fold = FoldedRows(prefix, repeat.start, repeat.layers.stop, stage, body)
                folds |= {r.name: fold for number in repeat.layers for r, _ in layers[number]}
    return folds


def _entry(r: VariableRow) -> list[str]:
    value = r.state if r.stage is None else f"({r.stage}, {r.state})"
    return layout.entry(f"{quoted(r.name)}: ", value, r.shape)


def _folded(fold: FoldedRows, table: str) -> list[str]:
    bounds = f"{fold.first}, {fold.end}" if fold.first else f"{fold.end}"
    value = "sbp" if fold.stage is None else f"({fold.stage}, sbp)"
    loops = [f"for i in range({bounds})", f"for name, sbp in {table}.items()"]
    parts = [f"{indexed(fold.prefix, end='.{name}')}: {value}", *loops]
    one = " ".join(parts)
    if len(one) + 9 <= layout.WIDTH:
        return [f"    **{{{one}}},"]
    if len(one) + 8 <= layout.WIDTH:
        return ["    **{", f"        {one}", "    },"]
    return ["    **{", *(f"        {part}" for part in parts), "    },"]


def _modules(fold: FoldedRows) -> str:
    prefix = fold.prefix.rstrip(".")
    return f"{prefix}.{fold.first}, {prefix}.{fold.first + 1}, …" if prefix else "the layers"


def _table_name(prefix: str, table: str, taken: Collection[str], used: Collection[str]) -> str:
    """Return BLOCK for the parameters of each of "blocks.", BLOCK_BUFFERS for its buffers."""
    words = [word for word in prefix.split(".") if word] or ["layer"]
    name = "_".join([*words[:-1], re.sub(r"(?<=[^s])s$", "", words[-1])])
    name = re.sub(r"[^A-Za-z0-9_]", "_", name).upper()
    name = f"X{name}" if name[0].isdigit() else name
    if table != "PARAMETERS" or name in taken:
        name = f"{name}_{table}"
    return first_free([name], used, joint="_")
