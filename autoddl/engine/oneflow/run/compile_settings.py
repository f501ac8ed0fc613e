"""How OneFlow compiles a plan for CUDA devices: on which streams boxings run, whether ops are chained.

Both are settings of the process. Jobs that accumulate gradients need them as OneFlow's own method for
that leaves them: boxings on the compute stream, and ops of a stage chained, each behind the last. Where
chains can't be joined OneFlow aborts; there they are off (model/memory knows the memory of both).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import oneflow as flow
from oneflow.framework import session_context

from autoddl.engine.oneflow.model.memory.compute_stream import can_be_chained
from autoddl.plan.value import PlanValue

_CHAINS = "ENABLE_LOGICAL_CHAIN"


@contextmanager
def compiling(plan: PlanValue) -> Iterator[None]:
    """Let what is compiled inside follow a plan; settings are what they were afterwards."""
    accumulates = plan.micro_batches > 1
    sizes = [part.mesh.size for part in plan.parts]
    session = session_context.GetDefaultSession()
    session.TryInit()
    before = session.resource.nccl_use_compute_stream
    flow.boxing.nccl.enable_use_compute_stream(before or accumulates or plan.compute_stream)
    try:
        with mock.patch.dict(os.environ):
            os.environ.pop(_CHAINS, None)
            if accumulates and can_be_chained(sizes, plan.program):
                os.environ[_CHAINS] = "true"
            yield
    finally:
        flow.boxing.nccl.enable_use_compute_stream(before)
