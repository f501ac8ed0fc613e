"""The proof of lowered steps: what is reported, and that wrong pieces and instructions are seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.local_program.instructions import LocalProgram
from autoddl.sbp.numpy_oracle import simulated_tensors
from experiments.proofs import lowered_steps
from experiments.proofs.boxings import MESHES
from experiments.proofs.lowered_steps import BATCH, LAYOUTS, LoweredReport
from tests.experiments.proofs.test_boxings import off_by_one
from tests.support.local_programs import updatable
from tests.support.programs import mlp


@pytest.fixture
def proof(tmp_path: Path) -> Callable[[], LoweredReport]:
    """Run the proof of a small model, which is in the folder already."""
    program = updatable(mlp(BATCH, (24, 24), act="relu"))
    program.save(tmp_path / f"mlp-{BATCH}.json")
    return lambda: lowered_steps.run(tmp_path, seed=1, models=("mlp",))


def test_steps_are_right_on_all_meshes(proof: Callable[[], LoweredReport]) -> None:
    report = proof()
    assert report.faults == ()
    assert [(s.mesh, s.layout) for s in report.steps] == [
        (mesh, number) for mesh in MESHES for number in range(LAYOUTS)
    ]
    assert all(step.instructions > step.communications > 0 for step in report.steps)
    (row,) = report.rows()
    assert len(row) == len(report.columns)
    assert (row[0], row[1], row[-1]) == ("mlp", "15", "0")
    assert report.summary().endswith(" 0 layouts wrong")
    assert json.loads(json.dumps(report.to_json()))["steps"][0]["mesh"] == "2:3/1"


def test_cut_points_that_are_off_by_one_are_found(
    proof: Callable[[], LoweredReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_tensors, "pieces", off_by_one)
    report = proof()
    assert all(step.wrong for step in report.steps)
    assert report.faults[0].startswith("mlp on 2:3/1, layout 0: ")


def test_what_is_refused_is_a_fault(
    proof: Callable[[], LoweredReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(local: LocalProgram) -> None:
        raise AutoDDLError("local program: instruction 3")

    monkeypatch.setattr(lowered_steps, "check", refused)
    report = proof()
    assert len(report.faults) == len(report.steps)
    assert all(line.endswith(": local program: instruction 3") for line in report.faults)
