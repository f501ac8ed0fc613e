"""Jobs of OneFlow with plans written into them, which nobody compiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any


def written(
    *, optimizer: str = "adam", widths: Sequence[int] = (16, 32, 8), compute_stream: bool = False,
    **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The job of an MLP under a plan for four devices, and the plan; as for a compute stream, if told."""
    import autoddl
    from autoddl.engine.oneflow.capture.reader import program_of, traced
    from autoddl.engine.oneflow.job.plan_injection import write_plan
    from experiments.models import mlp

    graph, inputs = mlp.build(widths=tuple(widths), batch=8, optimizer=optimizer)
    twin = traced(graph, *inputs)
    job = twin._full_job_proto
    program = program_of(job, twin.name)
    plan = replace(autoddl.optimize(program, **options), compute_stream=compute_stream)
    for group in job.placement.placement_group:
        group.parallel_conf.device_name[:] = [f"@{rank}:{rank}" for rank in range(4)]
    write_plan(job, plan, program, twin.name)
    return job, plan


def source(job: Any, lbn: str) -> str:
    """What a blob is but for its state: behind identities."""
    ops = {op.name: op for op in job.net.op}
    while lbn.startswith("autoddl-"):
        lbn = ops[lbn.split("/")[0]].user_conf.input["in"].s[0]
    return lbn
