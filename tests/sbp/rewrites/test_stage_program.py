"""The program of a stage: its ops, what arrives, and nothing else."""

from __future__ import annotations

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.rewrites.stage_program import (
    ARRIVAL,
    ARRIVED,
    DEPARTURE,
    StageCrossing,
    stage_layout,
)
from autoddl.sbp.state import NdSbp

B, S = NdSbp.parse("B"), NdSbp.parse("S0")


def test_two_stages() -> None:
    before, after = (two_stages(stage, in_pieces=False) for stage in (0, 1))
    made, leaving = before.program.ops
    assert made.name == "a"
    assert (leaving.type, leaving.inputs, leaving.outputs) == (DEPARTURE, (("in_0", "y"),), ())
    assert (before.program.outputs, before.program.loss, dict(before.variables)) == ((), None, {})
    assert before.redistributions == ()

    arrival, arrived, found = after.program.ops
    assert (arrival.type, arrival.inputs) == (ARRIVAL, ())
    assert (arrived.type, arrived.outputs) == (ARRIVED, (("out_0", "y"),))
    assert arrived.inputs[0][1] == arrival.outputs[0][1]
    assert found.name == "b"
    assert after.signatures[arrival.name] == {"out_0": S}
    assert [r.tensor for r in after.redistributions] == ["y"]
    assert (after.program.inputs, after.program.outputs, after.program.loss) == ((), ("z",), "z")
    assert {t.name for t in after.program.tensors} == {"w", "y", "z", arrival.outputs[0][1]}


def test_larger_shards_are_cut_and_put_together() -> None:
    before, after = (two_stages(stage, in_pieces=True) for stage in (0, 1))
    assert len(before.program.ops[-1].outputs) == 1  # the pieces
    pieces, whole, arrived, _ = after.program.ops
    assert [op.type for op in (pieces, whole, arrived)] == [ARRIVAL, ARRIVAL, ARRIVED]
    assert whole.inputs[0][1] == pieces.outputs[0][1]


def test_what_leaves_is_boxed_before() -> None:
    before = two_stages(0, in_pieces=False, path=(B,))
    (moved,) = before.redistributions
    assert (moved.tensor, moved.path) == ("y", (B,))
    assert moved.readers == ((before.program.ops[-1].name, "in_0"),)


def test_the_backward_pass_of_a_stage_waits_for_its_forward_pass() -> None:
    back = Op("c", "tanh_grad", (("x_0", "y"), ("dy_0", "z")), (("dx_0", "d"),), phase="backward")
    forward = Op("a", "tanh", (("x_0", "x"),), (("y_0", "y"),))
    other = Op("b", "tanh_grad", (("x_0", "y"),), (("dx_0", "z"),), phase="backward")
    tensors = tuple(Tensor(name, (8, 8), "float32", "activation") for name in "xyzd")
    program = Program((forward, other, back), tensors, ("x",), (), (), None)
    signatures = {op.name: {operand: S for operand, _ in op.operands} for op in program.ops}
    layout = Layout.of(program, signatures, {}, {"x": S}, [])
    stage_of = {"x": 0, "a": 0, "b": 1, "c": 0}
    found = stage_layout(layout, stage_of, 0, [StageCrossing("z", S)], [StageCrossing("y", S)])
    place = {op.type: op.name for op in found.program.ops}
    assert found.after == {place[ARRIVAL]: place[DEPARTURE]}


def two_stages(stage: int, *, in_pieces: bool, path: tuple[NdSbp, ...] = ()) -> Layout:
    """Return the layout of x → a → y → b → z, with b in the second stage."""
    first = Op("a", "tanh", (("x_0", "x"),), (("y_0", "y"),))
    second = Op("b", "broadcast_add", (("x_0", "y"), ("y_0", "w")), (("z_0", "z"),))
    roles = {"x": "input", "w": "parameter", "y": "activation", "z": "activation"}
    tensors = tuple(Tensor(name, (8, 8), "float32", role) for name, role in roles.items())
    program = Program((first, second), tensors, ("x",), ("z",), (Parameter("w"),), "z")
    signatures = {"a": {"x_0": S, "y_0": S}, "b": {"x_0": B, "y_0": B, "z_0": B}}
    moved = Redistribution("y", (B,), (("b", "x_0"),))
    layout = Layout.of(program, signatures, {"w": B}, {"x": S}, [moved])
    crossing = [StageCrossing("y", S, in_pieces, path)]
    ends = ((), crossing) if stage == 0 else (crossing, ())
    return stage_layout(layout, {"a": 0, "x": 0, "b": 1, "w": 1}, stage, *ends)
