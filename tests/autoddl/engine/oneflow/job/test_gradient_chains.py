"""What is between gradients and updates runs in the states of the updates, each gradient reduced once."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.sbp.state import NdSbp
from tests.support.written_jobs import source, written

pytestmark = pytest.mark.oneflow
NORM = "System-ClipGradient-GlobalNorm-MultiReduceSumPowAbs"


def states(job: Any, name: str) -> dict[str, NdSbp]:
    from autoddl.engine.oneflow.job.job_writer import read_state

    table = job.job_parallel_view_conf.op_name2nd_sbp_signature_conf[name].bn_in_op2nd_sbp
    return {operand: read_state(table[operand]) for operand in table}


@pytest.mark.parametrize(("mesh", "shards"), [("4", "S0"), ("2x2", "(S0, S0)")])
@pytest.mark.parametrize("optimizer", ["clipped_adam", "clipped_sgd"])
def test_chains_are_in_the_states_of_updates(optimizer: str, mesh: str, shards: str) -> None:
    whole = NdSbp.parse("B" if mesh == "4" else "(B, B)")
    pin = {"model.0.weight": shards, "model.0.bias": shards}  # the others are whole
    pin["model.2.*"] = str(whole)
    job, plan = written(optimizer=optimizer, mesh=mesh, search="ZeRO 2", pin=pin)
    ops = {op.name: op for op in job.net.op}
    gradients = dict[NdSbp, set[str]]()
    for parameter in plan.program.parameters:
        state = plan.variables[parameter.tensor]
        port, name = "model_diff", parameter.update
        while port:
            blob = ops[name].user_conf.input[port].s[0]
            name = blob.split("/")[0]
            port = {"scalar_mul_by_tensor": "x", "l1_l2_regularize_gradient": "model_diff"}.get(
                ops[name].user_conf.op_type_name, ""
            )
            if port:
                found = states(job, name)
                assert found.pop("scalar_0", whole) == whole
                assert set(found.values()) == {state}
        assert source(job, blob) == parameter.gradient
        gradients.setdefault(state, set()).add(blob)
    assert len(gradients) == 2
    norms = [op for op in job.net.op if op.name.startswith(NORM) and "-sum" not in op.name]
    assert len(norms) == 2
    for norm in norms:
        found = states(job, norm.name)
        made = found.pop("y_0")
        (state,) = set(found.values())
        assert set(norm.user_conf.input["x"].s) == gradients.pop(state)  # as the chains read them
        assert made == NdSbp.parse(str(state).replace("S0", "P"))
    assert not gradients


def test_a_plan_of_whole_gradients_has_one_norm() -> None:
    job, _ = written(optimizer="clipped_adam", mesh="4", search="data parallel")
    (norm,) = [op.name for op in job.net.op if op.name.startswith(NORM)]
    assert {str(state) for state in states(job, norm).values()} == {"(B)"}
