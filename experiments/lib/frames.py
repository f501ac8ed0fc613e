"""Rows of experiments: lines of JSON that grow and go on, data frames, tables, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from autoddl import store

Row = dict[str, Any]
Format = str | Callable[[Any], str]
Formats = Mapping[str, Format]
"""How columns are written: a format such as "{:.1%}", or a function."""


class RowStore:
    """The rows of a file of JSON lines; what is added is there at once, and after an interruption.

    A line that was cut off is no row. `rows.once({"model": "gpt"}, make)` returns the row with these
    fields; where there is none it is made of them and what `make()` returns.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: list[Row] = list(store.read(file)[0].values()) if file.exists() else []

    def add(self, row: Mapping[str, Any]) -> Row:
        """Append a row and return it as it will be read."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        store.append(self.file, dict(row))
        self.rows.append(json.loads(json.dumps(dict(row))))
        return self.rows[-1]

    def having(self, **fields: Any) -> list[Row]:
        """Return the rows with these values, in order."""
        return [r for r in self.rows if all(r.get(name) == v for name, v in fields.items())]

    def once(self, key: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> Row:
        """Return the first row with these values; it is made where there is none."""
        found = self.having(**key)
        return found[0] if found else self.add({**key, **make()})


def text(frame: pd.DataFrame, formats: Formats, style: str = "simple") -> str:
    """Return the columns that `formats` names as a table; what is missing is left empty."""
    cells = pd.DataFrame({name: _formatted(frame[name], form) for name, form in formats.items()})
    right = [pd.api.types.is_numeric_dtype(frame[name]) for name in formats]
    table: str = cells.to_markdown(
        index=False, tablefmt=style, disable_numparse=True,
        colalign=["right" if numbers else "left" for numbers in right],
    )  # fmt: skip
    return table


def _formatted(column: pd.Series[Any], form: Format) -> pd.Series[Any]:
    write = form.format if isinstance(form, str) else form
    return column.map(lambda value: write(value) if pd.notna(value) else "")


def save(
    frame: pd.DataFrame, folder: Path, name: str,
    tables: Sequence[tuple[str, pd.DataFrame, Formats]] = (), **facts: Any,
) -> None:  # fmt: skip
    """Write a frame as CSV, and as JSON with other facts and the versions that made it.

    Of `tables`, a caption and a frame each, the text is kept for a page.
    """
    frame.to_csv(folder / f"{name}.csv", index=False)
    versions = {package: version(package) for package in ("autoddl", "numpy")}
    rows = json.loads(frame.to_json(orient="records", double_precision=15))
    page = [[caption, text(one, formats, "pipe")] for caption, one, formats in tables]
    data = {"versions": versions, **facts, "tables": page, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(f"wrote {folder}/{name}.csv, {name}.json")
