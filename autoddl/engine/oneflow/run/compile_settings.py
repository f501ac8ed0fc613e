"""How OneFlow compiles a plan for CUDA devices: on which streams boxings run, whether ops are chained.

Both are settings of the process. Jobs that accumulate gradients need them as OneFlow's own method for
that leaves them: boxings on the compute stream, and ops of a stage chained, each behind the last. Where
chains can't be joined OneFlow aborts; there they are off (model/memory knows the memory of both).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
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
    _check_launches(plan, session)
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


def _check_launches(plan: PlanValue, session: Any) -> None:
    """Warn where the process joins collectives in another way than the plan was made for.

    OneFlow 0.9 reads these settings when the session begins, with the first nn.Graph; later ones show up
    in the session's resource, and its scheduler of collectives keeps the first.
    """
    queue, begun = plan.queue, session.config_proto.resource.collective_boxing_conf
    if queue is None:
        return
    wanted = {"nccl_fusion_threshold_mb": queue.threshold_mb, "nccl_fusion_max_ops": queue.max_ops}
    found = {name: getattr(begun, name) for name in wanted}
    if found != wanted:
        warnings.warn(
            f"plan: made for launches of up to {queue.threshold_mb} MiB and {queue.max_ops} collectives, "
            f"this process joins up to {' and '.join(map(str, found.values()))}; before the first "
            f"nn.Graph call oneflow.boxing.nccl.set_fusion_threshold_mbytes({queue.threshold_mb}) and "
            f"set_fusion_max_ops_num({queue.max_ops}), or plan with fusion="
            f"{','.join(map(str, found.values()))!r}",
            stacklevel=4,
        )
