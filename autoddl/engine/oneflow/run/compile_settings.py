"""How OneFlow compiles a plan for CUDA devices: on which streams boxings run, whether ops are chained.

Both are settings of the process. Jobs that accumulate gradients need them as OneFlow's own method for
that leaves them: boxings on the compute stream, and ops of a stage chained, each behind the last. Where
values that are not finite are looked for, chains of two stages would wait for each other, and chains
can't be joined where stages have unlike numbers of devices, but from one device to several. In both
cases OneFlow aborts: there chains are off, and a plan takes up to a third more memory than predicted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import oneflow as flow
from oneflow.framework import session_context

from autoddl.plan.value import PlanValue

_CHAINS = "ENABLE_LOGICAL_CHAIN"


@contextmanager
def compiling(plan: PlanValue, graph: flow.nn.Graph) -> Iterator[None]:
    """Let what is compiled inside follow a plan of a graph; settings are what they were afterwards."""
    accumulates = plan.micro_batches > 1
    session = session_context.GetDefaultSession()
    session.TryInit()
    before = session.resource.nccl_use_compute_stream
    flow.boxing.nccl.enable_use_compute_stream(before or accumulates or plan.compute_stream)
    try:
        with mock.patch.dict(os.environ):
            os.environ.pop(_CHAINS, None)
            if accumulates and graph._grad_scaler is None and _can_be_chained(plan):
                os.environ[_CHAINS] = "true"
            yield
    finally:
        flow.boxing.nccl.enable_use_compute_stream(before)


def _can_be_chained(plan: PlanValue) -> bool:
    """Tell whether the chain of each stage can be joined with the next one's."""
    sizes = [part.mesh.size for part in plan.parts]
    return all(size in (1, behind) for size, behind in pairwise(sizes))
