"""The written report: one row per op type and per model, with what is refused and why."""

from __future__ import annotations

from experiments.proofs import oracle
from experiments.proofs.document import document
from experiments.proofs.engine import EngineReport, Instance, TypeReport
from experiments.proofs.execution import ExecutionReport, plan_row


def test_every_op_type_and_model_has_a_row() -> None:
    proven = oracle.run(seed=0, op_types={"relu", "cast"})
    asked = (
        Instance("relu", "x_0: 4 8", 2, ("B", "cut d0"), ("cut d1",), ()),
        Instance("relu", "x_0: 4 8", 4, ("B",), (), ("P -> P",)),
    )
    engine = EngineReport("e 1", (TypeReport("relu", asked),), {"relu": frozenset({"cut d1"})})
    runs = [plan_row("mlp", "2x2", 0, loss=1e-7, weights=2e-8, moved=0.1, redistributions=7)]
    lines = document(proven, engine, ExecutionReport(runs)).splitlines()
    (relu,) = (line for line in lines if line.startswith("| `relu` "))
    cells = [cell.strip() for cell in relu.strip("|").split(" | ")]
    assert cells[1:5] == ["elementwise", "4", "4", "3"]  # ours, OneFlow's, common
    assert "OneFlow refuses `cut d1`" in cells[5] and "`P -> P`: not modelled" in cells[5]
    assert any(line.startswith("| `cast` ") and "not asked" in line for line in lines)
    assert "| mlp | 2x2 | 1 | 1 | 1.0e-07 | 2.0e-08 | 1.0e-01 | 7 |" in lines
    assert any("of 3 signatures that plans can use here it accepts 3" in line for line in lines)
