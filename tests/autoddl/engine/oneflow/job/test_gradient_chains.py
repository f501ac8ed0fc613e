"""What is between gradients and updates runs in the states of the updates, each gradient reduced once."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.sbp.state import NdSbp

pytestmark = pytest.mark.oneflow
NORM = "System-ClipGradient-GlobalNorm-MultiReduceSumPowAbs"


def written(optimizer: str, **options: Any) -> tuple[Any, Any]:
    """The job of a small MLP under a plan for four devices, and the plan."""
    import autoddl
    from autoddl.engine.oneflow.capture.reader import program_of, traced
    from autoddl.engine.oneflow.job.plan_injection import write_plan
    from experiments.models import mlp

    graph, inputs = mlp.build(widths=(16, 32, 8), batch=8, optimizer=optimizer)
    twin = traced(graph, *inputs)
    job = twin._full_job_proto
    program = program_of(job, twin.name)
    plan = autoddl.optimize(program, **options)
    for group in job.placement.placement_group:
        group.parallel_conf.device_name[:] = [f"@{rank}:{rank}" for rank in range(4)]
    write_plan(job, plan, program, twin.name)
    return job, plan


def states(job: Any, name: str) -> dict[str, NdSbp]:
    from autoddl.engine.oneflow.job.job_writer import read_state

    table = job.job_parallel_view_conf.op_name2nd_sbp_signature_conf[name].bn_in_op2nd_sbp
    return {operand: read_state(table[operand]) for operand in table}


def source(job: Any, lbn: str) -> str:
    """What a blob is but for its state: behind identities."""
    ops = {op.name: op for op in job.net.op}
    while lbn.startswith("autoddl-"):
        lbn = ops[lbn.split("/")[0]].user_conf.input["in"].s[0]
    return lbn


@pytest.mark.parametrize(("mesh", "shards"), [("4", "S0"), ("2x2", "(S0, S0)")])
@pytest.mark.parametrize("optimizer", ["clipped_adam", "clipped_sgd"])
def test_chains_are_in_the_states_of_updates(optimizer: str, mesh: str, shards: str) -> None:
    whole = NdSbp.parse("B" if mesh == "4" else "(B, B)")
    pin = {"model.0.weight": shards, "model.0.bias": shards}  # the others are whole
    job, plan = written(optimizer, mesh=mesh, search="ZeRO 2", pin={**pin, "model.2.*": str(whole)})
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
    job, _ = written("clipped_adam", mesh="4", search="data parallel")
    (norm,) = [op.name for op in job.net.op if op.name.startswith(NORM)]
    assert {str(state) for state in states(job, norm).values()} == {"(B)"}
