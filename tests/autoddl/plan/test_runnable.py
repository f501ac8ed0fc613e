"""Which plans an engine runs: what it would abort at is refused in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.sbp.rewrites.in_parts.sync_batchnorm import synchronised
from autoddl.sbp.rewrites.micro_batch import micro_batch
from tests.sbp.rewrites.test_sync_batchnorm import program
from tests.support.budgets import LITTLE
from tests.support.unlike_parts import parted


@pytest.mark.parametrize("in_parts", [False, True])
def test_statistics_of_micro_batches_run_on_cpus_alone(in_parts: bool) -> None:
    part = micro_batch(program((8, 3, 2)), 2)
    plan = parted(synchronised(part) if in_parts else part, ["1"], 2)
    assert plan.check_runnable() == "oneflow"
    on_cuda = replace(plan, program=replace(plan.program, device="cuda"))
    told = r"op \S+ writes to a variable in each of 2 micro-batches.*cuda devices; plan with"
    with pytest.raises(AutoDDLError, match=told):
        on_cuda.check_runnable()
    assert replace(on_cuda, micro_batches=1).check_runnable() == "oneflow"


def test_less_memory_brings_no_micro_batches_that_the_engine_does_not_run() -> None:
    """Whoever asks for stages gets them, for scripts; else there are none where memory is short."""
    whole = program((8, 64, 32))
    for device, stages in (("cpu", True), ("cuda", False)):
        there = replace(whole, device=device)
        plan = autoddl.optimize(there, mesh="2", profile="h100", budget=LITTLE)
        least = plan.estimate.memory_bytes
        if stages:
            found = autoddl.optimize(
                there, cluster="2", memory=least // 2, profile="h100", budget=LITTLE
            )
            assert found.pipelined
        else:
            with pytest.raises(AutoDDLError, match="memory"):
                autoddl.optimize(
                    there, cluster="2", memory=least // 2, profile="h100", budget=LITTLE
                )
        two = autoddl.optimize(there, cluster="2", pipeline=2, profile="h100", budget=LITTLE)
        assert two.micro_batches > 1
