"""Both planners' plans under one model: OneFlow's states as a layout, rows, the document."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import autoddl
from autoddl.api import Plan
from autoddl.engine.oneflow.model.memory.device_memory import estimate
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.timeline import predict
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from experiments.bench.against_auto_parallel import __main__ as command
from experiments.bench.against_auto_parallel.peer_plan import PeerPlan, beside, layout
from experiments.lib import cli
from tests.support.clusters import cluster
from tests.support.programs import transformer

PROFILE = cluster()


def as_peer(program: Program, plan: Plan) -> PeerPlan:
    """Our plan, written as if OneFlow had chosen it."""
    signatures = {
        name: {operand: str(state) for operand, state in operands.items()}
        for name, operands in plan.signatures.items()
    }
    held = {name: str(state) for name, state in plan.variables.items()}
    held |= {item.name: str(item.state) for item in plan.inputs}
    return PeerPlan(program, signatures, held, 1.0, 3.0, 2.0)


@pytest.mark.parametrize("search", ["data parallel", "Megatron", "ZeRO 2"])
def test_a_plan_of_ours_read_back_costs_the_same(search: str) -> None:
    program = transformer(2)
    plan = autoddl.optimize(program, mesh="2x2", profile=PROFILE, search=search)
    found = layout(as_peer(program, plan), plan.mesh, PROFILE)
    ours, theirs = (predict(plan.mesh, PROFILE, x) for x in (plan.layout, found))
    assert theirs.cost.compute_s == pytest.approx(ours.cost.compute_s)
    assert theirs.cost.communication_s == pytest.approx(ours.cost.communication_s)
    assert theirs.cost.communication_s > 0
    assert estimate((2, 2), found).parameters == (estimate((2, 2), plan.layout).parameters)


def test_a_tensor_is_charged_once_for_each_state_that_is_wanted() -> None:
    program = transformer(1)
    mesh = Mesh.parse("2", PROFILE.levels)
    whole = {op.name: {o: "B" for o, _ in op.operands} for op in program.ops}
    held = {t.name: "B" for t in program.tensors if t.name not in program.producer}
    plain = PeerPlan(program, whole, held, 1.0, 1.0, 1.0)
    assert layout(plain, mesh, PROFILE).redistributions == ()
    ids = program.inputs[0]
    split = layout(replace(plain, held={**held, ids: "S0"}), mesh, PROFILE)
    (only,) = split.redistributions
    readers = {(op.name, o) for op in program.ops for o, t in op.inputs if t == ids}
    assert only.tensor == ids and set(only.readers) == readers and len(readers) == 2
    assert [str(state) for state in only.path] == ["(B)"]


def files(folder: Path, program: Program, peer: PeerPlan | str) -> tuple[Path, Path]:
    """What the ranks write."""
    mine, theirs = folder / "ours.json", folder / "peer.json"
    plan = autoddl.optimize(program, mesh="2x2", profile=PROFILE, budget=1.0)
    plan.save(beside(mine, "plan"))
    program.save(beside(mine, "program"))
    mine.write_text(json.dumps({"seconds": 0.7, "capture_s": 0.2}))
    if isinstance(peer, str):
        theirs.write_text(json.dumps({"error": peer}))
    else:
        peer.save(theirs)
    return mine, theirs


def test_rows_have_both_costs_or_say_why_not(tmp_path: Path) -> None:
    program = transformer(1)
    other = autoddl.optimize(program, mesh="2x2", profile=PROFILE, search="data parallel")
    mine, theirs = files(tmp_path, program, as_peer(program, other))
    ours, peer = command.rows(1, mine, theirs, PROFILE)
    assert (peer["seconds"], peer["graph_s"], peer["own_s"]) == (3.0, 1.0, 2.0)
    assert ours["seconds"] == 0.7
    assert peer["compute_s"] == pytest.approx(other.estimate.compute_s)
    assert peer["communication_s"] == pytest.approx(other.estimate.communication_s)
    both = [side["compute_s"] + side["communication_s"] for side in (ours, peer)]
    assert both == sorted(both)
    theirs.write_text(json.dumps({"error": "not done after 3 s"}))
    _, late = command.rows(1, mine, theirs, PROFILE)
    assert late["error"] == "not done after 3 s" and "seconds" not in late


def test_what_was_not_done_is_tried_again_with_more_time(tmp_path: Path) -> None:
    file = tmp_path / "peer.json"
    assert not command.settled(file, 10.0)
    file.write_text(json.dumps({"error": "not done after 10 s", "limit_s": 10.0}))
    assert command.settled(file, 10.0) and not command.settled(file, 11.0)
    program = transformer(1)
    plan = autoddl.optimize(program, mesh="2x2", profile=PROFILE, search="data parallel")
    as_peer(program, plan).save(file)
    assert command.settled(file, 1e9)


def test_different_programs_are_not_compared(tmp_path: Path) -> None:
    other = transformer(2)
    plan = autoddl.optimize(other, mesh="2x2", profile=PROFILE, search="data parallel")
    mine, theirs = files(tmp_path, transformer(1), as_peer(other, plan))
    with pytest.raises(AutoDDLError, match="another program than that of"):
        command.rows(1, mine, theirs, PROFILE)


def test_the_table() -> None:
    ours = {
        "layers": 2, "mesh": "2x2", "ops": 1234, "planner": "autoddl", "seconds": 0.71, "graph_s": 0.2,
        "gap": 0.0, "compute_s": 0.010, "communication_s": 0.002, "step_s": 0.011,
        "memory_bytes": 3_000_000_000,
    }  # fmt: skip
    peer = {**ours, "planner": "OneFlow", "seconds": 12.0, "own_s": 8.25}
    peer |= {"compute_s": 0.014, "communication_s": 0.004}
    late = {"planner": "OneFlow", "error": "not done after 600 s"}
    lines = command.table([ours, peer, {**ours, "layers": 24, "gap": 0.001}, late]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert cells[0] == [
        "2", "2x2", "1,234", "autoddl (gap 0 %)", "0.7 (0.2)", "", "10.0", "2.0", "11.0", "3.00", "1",
    ]  # fmt: skip
    assert cells[1] == [
        "", "", "", "OneFlow", "12.0 (0.2)", "8.2", "14.0", "4.0", "11.0", "3.00", "1.500",
    ]  # fmt: skip
    assert "gap 0.1 %" in cells[2][3]
    assert cells[3][3:5] == ["OneFlow", "not done after 600 s"]
    assert len({line.count("|") for line in lines}) == 1  # Markdown wants as many in every line


def main(*argv: str) -> int:
    return cli.run(command.command, "bench.against_auto_parallel", argv)


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--search", "best", "--folder", str(tmp_path)) == 2
    assert capsys.readouterr().err.startswith("bench.against_auto_parallel: --search: got 'best'")


@pytest.mark.oneflow
@pytest.mark.ranks
@pytest.mark.slow
def test_the_whole_way(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    arguments = ["--layers", "1", "--meshes", "4", "--budget", "1", "--limit", "100"]
    assert main(*arguments, "--folder", str(tmp_path), "--document", str(out)) == 0
    assert "do not edit" in out.read_text() and "- machine: " in out.read_text()
    row = next(line for line in out.read_text().splitlines() if "| OneFlow" in line)
    ratio = float(row.rsplit("|", 2)[1])
    assert ratio > 0.999
