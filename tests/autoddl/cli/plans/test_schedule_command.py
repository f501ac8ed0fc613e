"""The command `schedule` keeps the plan that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import autoddl
from autoddl.cli.app import main
from tests.support.clusters import cluster
from tests.support.programs import mlp


def test_it_does_not_write_over_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, path = tmp_path / "staged.json", tmp_path / "schedule.json"
    autoddl.optimize(
        mlp(8, (16, 16, 16)), mesh="1", pipeline=2, micro_batches=2, profile=cluster(),
        engine="script", budget=0.3,
    ).save(plan)  # fmt: skip
    before = plan.read_bytes()
    assert main(["schedule", str(plan), "-o", str(plan)]) == 2
    assert "it is what is read; give another with -o" in capsys.readouterr().err
    assert plan.read_bytes() == before
    assert main(["schedule", str(plan), "-o", str(path)]) == 0
    assert main(["schedule", str(plan), "--use", str(path), "-o", str(path)]) == 0  # again
