"""Both planners' plans under one model: OneFlow's states as a layout, rows, the document."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.make_plan import layout_of
from autoddl.perfmodel.memory import estimate
from autoddl.perfmodel.timeline import predict
from autoddl.plan import Plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from experiments.against_auto_parallel import __main__ as command
from experiments.against_auto_parallel.document import Row, Side, document, table
from experiments.against_auto_parallel.peer_plan import PeerPlan, beside, layout
from tests.clusters import cluster
from tests.programs import transformer

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
    ours, theirs = (predict(program, plan.mesh, PROFILE, x) for x in (layout_of(plan), found))
    assert theirs.cost.compute_s == pytest.approx(ours.cost.compute_s)
    assert theirs.cost.communication_s == pytest.approx(ours.cost.communication_s)
    assert theirs.cost.communication_s > 0
    assert estimate(program, (2, 2), found).parameters == (
        estimate(program, (2, 2), layout_of(plan)).parameters
    )


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
    found = command.row(1, mine, theirs, PROFILE)
    assert found.peer is not None and (found.peer.seconds, found.peer.graph_s) == (3.0, 1.0)
    assert found.ours.seconds == 0.7 and found.processor_s == 2.0
    assert found.peer.compute_s == pytest.approx(other.estimate.compute_s)
    assert found.peer.communication_s == pytest.approx(other.estimate.communication_s)
    assert found.ours.cost_s <= found.peer.cost_s
    theirs.write_text(json.dumps({"error": "not done after 3 s"}))
    late = command.row(1, mine, theirs, PROFILE)
    assert late.peer is None and late.error == "not done after 3 s"


def test_what_was_not_done_is_tried_again_with_more_time(tmp_path: Path) -> None:
    file = tmp_path / "peer.json"
    assert not command._settled(file, 10.0)
    file.write_text(json.dumps({"error": "not done after 10 s", "limit_s": 10.0}))
    assert command._settled(file, 10.0) and not command._settled(file, 11.0)
    program = transformer(1)
    plan = autoddl.optimize(program, mesh="2x2", profile=PROFILE, search="data parallel")
    as_peer(program, plan).save(file)
    assert command._settled(file, 1e9)


def test_different_programs_are_not_compared(tmp_path: Path) -> None:
    other = transformer(2)
    plan = autoddl.optimize(other, mesh="2x2", profile=PROFILE, search="data parallel")
    mine, theirs = files(tmp_path, transformer(1), as_peer(other, plan))
    with pytest.raises(AutoDDLError, match="another program than that of"):
        command.row(1, mine, theirs, PROFILE)


def test_the_table() -> None:
    ours = Side(0.71, 0.2, 0.010, 0.002, 0.011, 3_000_000_000)
    peer = replace(ours, seconds=12.0, compute_s=0.014, communication_s=0.004)
    rows = [
        Row(2, "2x2", 1234, ours, 0.0, peer, 8.25),
        Row(24, "2x2", 12345, ours, 0.001, error="not done after 600 s"),
    ]
    first, second, third, fourth = list(table(rows))[2:]
    assert first == (
        "| 2 | 2x2 | 1,234 | autoddl (gap 0 %) | 0.7 (0.2) |  | 10.0 | 2.0 | 11.0 | 3.00 | 1 |"
    )
    assert second == "| | | | OneFlow | 12.0 (0.2) | 8.2 | 14.0 | 4.0 | 11.0 | 3.00 | 1.500 |"
    assert "gap 0.1 %" in third
    assert "not done after 600 s" in fourth
    columns = {line.count("|") for line in table(rows)}
    assert len(columns) == 1  # Markdown tables need the same number in every line
    text = document(rows, ["machine: x"])
    assert "do not edit" in text and "- machine: x\n" in text and first in text


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--search", "best", "--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("against_auto_parallel: --search: got 'best'")


@pytest.mark.testbed
@pytest.mark.slow
def test_the_whole_way(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    arguments = ["--layers", "1", "--meshes", "4", "--budget", "1", "--limit", "100"]
    assert command.main([*arguments, "--folder", str(tmp_path), "--document", str(out)]) == 0
    row = next(line for line in out.read_text().splitlines() if line.startswith("| | | | OneFlow"))
    ratio = float(row.rsplit("|", 2)[1])
    assert ratio > 0.999
