"""Tables of parameters: folded ones have the same entries as those written out."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.codegen.source.folded_tables import VariableRow, variables


def read(lines: list[str]) -> dict[str, Any]:
    """Return the table PARAMETERS that the lines make."""
    found: dict[str, Any] = {"B": "B", "S": lambda dim: f"S{dim}"}
    exec("\n".join(lines), found)
    return dict(found["PARAMETERS"])


@pytest.mark.parametrize("staged", [False, True])
def test_folded_tables_have_all_entries(staged: bool) -> None:
    rows = [VariableRow("token.weight", "[B]", "(8, 8)", 0 if staged else None)]
    for i in range(6):
        stage = i // 4 if staged else None
        state = "[S(1)]" if i == 5 else "[S(0)]"  # one is unlike the others
        rows += [
            VariableRow(f"blocks.{i}.{leaf}", state, "(8,)", stage) for leaf in ("weight", "bias")
        ]
    rows.append(VariableRow("0.only", "[B]", "()", 1 if staged else None))
    lines = variables("PARAMETERS", "All.", rows, ())
    values = {"[B]": ["B"], "[S(0)]": ["S0"], "[S(1)]": ["S1"]}
    expected = {r.name: (r.stage, values[r.state]) if staged else values[r.state] for r in rows}
    assert read(lines) == expected
    text = "\n".join(lines)
    assert text.count("BLOCK = {") == 1
    assert "range(4)" in text if staged else "range(5)" in text
    assert '"blocks.5.weight"' in text  # alone, so written out
