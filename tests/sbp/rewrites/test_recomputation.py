"""Forward results that are made again: copies of ops, states and redistributions with them."""

from __future__ import annotations

from autoddl.sbp.layout import Layout, Redistribution
from autoddl.sbp.program import Op
from autoddl.sbp.rewrites.recomputation import PREFIX, can_repeat, recomputed
from autoddl.sbp.state import NdSbp
from tests.autoddl.engine.oneflow.model.memory.test_device_memory import chained_back


def test_recomputation_keeps_the_states_and_redistributions_of_a_plan() -> None:
    program, b, s = chained_back(3), NdSbp.parse("B"), NdSbp.parse("S0")
    signatures = {o.name: {operand: b for operand, _ in o.operands} for o in program.ops}
    signatures["back2"] = {"x_0": b, "y_0": s, "z_0": b}
    moved = [Redistribution("t2", (s,), (("back2", "y_0"),))]
    planned = Layout.of(program, signatures, {}, {"x": b}, moved)
    new = recomputed(planned, ["t1", "t2"])
    changed = new.program
    assert [(r.tensor, r.readers) for r in new.redistributions] == [
        (f"{PREFIX}t2", (("back2", "y_0"),))
    ]
    assert new.signatures[f"{PREFIX}op2"] == signatures["op2"]
    assert new.after == dict.fromkeys([f"{PREFIX}op1", f"{PREFIX}op2"], "back3")
    assert dict(changed.op[f"{PREFIX}op2"].inputs) == {"in_0": f"{PREFIX}t1"}
    assert dict(changed.op["op3"].inputs) == {"in_0": "t2"}


def test_what_nothing_reads_again_has_no_effect() -> None:
    program, b = chained_back(3), NdSbp.parse("B")
    signatures = {o.name: {operand: b for operand, _ in o.operands} for o in program.ops}
    planned = Layout.of(program, signatures, {}, {"x": b})
    assert recomputed(planned, ["x", "g1", "nothing"]) is planned


def test_what_draws_or_writes_is_not_run_again() -> None:
    plain = Op("a", "relu", (("x_0", "x"),), (("y_0", "y"),))
    random = Op("b", "dropout", (("in_0", "x"),), (("out_0", "y"),))
    assert (can_repeat(plain), can_repeat(random)) == (True, False)
