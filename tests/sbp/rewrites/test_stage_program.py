"""The program of a stage: its ops, what arrives, and nothing else."""

from __future__ import annotations

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op, Parameter, Program, Tensor
from autoddl.sbp.rewrites.stage_program import ARRIVAL, stage_layout
from autoddl.sbp.state import NdSbp

B, S = NdSbp.parse("B"), NdSbp.parse("S0")


def test_the_second_of_two_stages() -> None:
    first = Op("a", "tanh", (("x_0", "x"),), (("y_0", "y"),))
    second = Op("b", "broadcast_add", (("x_0", "y"), ("y_0", "w")), (("z_0", "z"),))
    roles = {"x": "input", "w": "parameter", "y": "activation", "z": "activation"}
    tensors = tuple(Tensor(name, (8, 8), "float32", role) for name, role in roles.items())
    program = Program((first, second), tensors, ("x",), ("z",), (Parameter("w"),), "z")
    signatures = {"a": {"x_0": S, "y_0": S}, "b": {"x_0": B, "y_0": B, "z_0": B}}
    moved = Redistribution("y", (B,), (("b", "x_0"),))
    layout = Layout.of(program, signatures, {"w": B}, {"x": S}, [moved])
    stage_of = {"a": 0, "x": 0, "b": 1, "w": 1}

    before, after = (stage_layout(layout, stage_of, n, {"y": S} if n else {}) for n in (0, 1))
    assert [op.name for op in before.program.ops] == ["a"]
    assert (before.program.outputs, before.program.loss, dict(before.variables)) == ((), None, {})
    assert before.redistributions == ()

    arrival, found = after.program.ops
    assert (arrival.type, arrival.inputs, arrival.outputs) == (ARRIVAL, (), (("out_0", "y"),))
    assert found == second
    assert after.signatures[arrival.name] == {"out_0": S}
    assert after.redistributions == (moved,)
    assert (after.program.inputs, after.program.outputs, after.program.loss) == ((), ("z",), "z")
    assert {t.name for t in after.program.tensors} == {"w", "y", "z"}
