"""Tables of parameters and buffers: those of equal numbered modules are written once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from autoddl.codegen import lines as layout
from autoddl.codegen.expression import literal, sbp_text
from autoddl.plan import Plan
from autoddl.sbp.program import Program

MIN_FOLDED = 2  # rows and modules, from which on a table of its own is shorter


@dataclass(frozen=True)
class Row:
    """One variable: its name in the model, its state and shape as text, its stage if there are some."""

    name: str
    state: str
    shape: str
    stage: int | None = None


@dataclass(frozen=True)
class Fold:
    """Rows "prefix i . rest" that are equal for all numbers from `first` to before `end`."""

    prefix: str
    first: int
    end: int
    stage: int | None
    rows: tuple[Row, ...]  # their names are the rests


def row(plan: Plan, program: Program, tensor: str, prefix: str, stage: int | None = None) -> Row:
    """Return the row of a variable; `prefix` is the part of its name that the model leaves out."""
    shape = literal(program.tensor[tensor].shape)
    return Row(tensor[len(prefix) :], sbp_text(plan.variables[tensor]), shape, stage)


def variables(name: str, note: str, rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table `name`, after those of the modules that it repeats."""
    folds = _folds(rows)
    tables: dict[tuple[Row, ...], str] = {}
    lines: list[str] = []
    for each in folds.values():
        if each.rows not in tables:
            table = _table_name(each.prefix, name, set(tables.values()))
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


def _folds(rows: Sequence[Row]) -> dict[str, Fold]:
    """Return the fold of each row that is in one, by the row's name."""
    modules: dict[tuple[str, int], list[tuple[Row, str]]] = {}
    for r in rows:
        match = re.match(r"((?:.*?\.)??)(\d+)\.(.+)", r.name)
        if match:
            modules.setdefault((match[1], int(match[2])), []).append((r, match[3]))
    bodies = {
        key: tuple(Row(rest, r.state, r.shape) for r, rest in found)
        for key, found in modules.items()
        if len({r.stage for r, _ in found}) == 1
    }

    def run(item: tuple[int, tuple[str, int]]) -> tuple[object, ...]:
        place, (prefix, number) = item
        key = (prefix, number)
        return prefix, number - place, bodies[key], modules[key][0][0].stage

    folds: dict[str, Fold] = {}
    for _, group in groupby(enumerate(sorted(bodies)), key=run):
        keys = [key for _, key in group]
        (prefix, first), body = keys[0], bodies[keys[0]]
        if len(keys) >= MIN_FOLDED and len(body) >= MIN_FOLDED:
            fold = Fold(prefix, first, first + len(keys), modules[keys[0]][0][0].stage, body)
            folds |= {r.name: fold for key in keys for r, _ in modules[key]}
    return folds


def _entry(r: Row) -> list[str]:
    value = r.state if r.stage is None else f"({r.stage}, {r.state})"
    return layout.entry(f'"{r.name}": ', value, r.shape)


def _folded(fold: Fold, table: str) -> list[str]:
    bounds = f"{fold.first}, {fold.end}" if fold.first else f"{fold.end}"
    value = "sbp" if fold.stage is None else f"({fold.stage}, sbp)"
    loops = [f"for i in range({bounds})", f"for name, sbp in {table}.items()"]
    parts = [f'f"{fold.prefix}{{i}}.{{name}}": {value}', *loops]
    one = " ".join(parts)
    if len(one) + 9 <= layout.WIDTH:
        return [f"    **{{{one}}},"]
    if len(one) + 8 <= layout.WIDTH:
        return ["    **{", f"        {one}", "    },"]
    return ["    **{", *(f"        {part}" for part in parts), "    },"]


def _modules(fold: Fold) -> str:
    prefix = fold.prefix.rstrip(".")
    return f"{prefix}.{fold.first}, {prefix}.{fold.first + 1}, …" if prefix else "the layers"


def _table_name(prefix: str, table: str, taken: set[str]) -> str:
    """Return BLOCK for the parameters of each of "blocks.", BLOCK_BUFFERS for its buffers."""
    words = [word for word in prefix.split(".") if word] or ["layer"]
    name = "_".join([*words[:-1], re.sub(r"(?<=[^s])s$", "", words[-1])])
    name = re.sub(r"\W", "_", name).upper()
    if table != "PARAMETERS" or name in _TAKEN:
        name = f"{name}_{table}"
    number, base = 2, name
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


_TAKEN = ("B", "P", "S", "F", "STAGE", "PLACEMENT", "RANK", "INPUT", "FORWARD", "ORDER", "DONE")
