"""Settings of the process for one compilation, and as they were afterwards."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autoddl.engine.model import CollectiveQueue

pytestmark = pytest.mark.oneflow
CHAINS = "ENABLE_LOGICAL_CHAIN"


def settings(
    *, micro_batches: int = 1, compute_stream: bool = False, sizes: tuple[int, ...] = (1,),
    tensors: tuple[str, ...] = ("loss",), queue: CollectiveQueue | None = None,
) -> Any:  # fmt: skip
    """Where boxings run, and whether ops are chained, for a plan of a program with these tensors."""
    from oneflow.framework import session_context

    from autoddl.engine.oneflow.run.compile_settings import compiling

    parts = [SimpleNamespace(mesh=SimpleNamespace(size=size)) for size in sizes]
    program = SimpleNamespace(tensors=[SimpleNamespace(name=name) for name in tensors])
    plan: Any = SimpleNamespace(
        micro_batches=micro_batches,
        compute_stream=compute_stream,
        parts=parts,
        program=program,
        queue=queue,
    )
    with compiling(plan):
        resource = session_context.GetDefaultSession().resource
        return resource.nccl_use_compute_stream, os.environ.get(CHAINS)


def scaled_tensors() -> tuple[str, ...]:
    """Return the tensors of a program that was captured from a graph with a scaler."""
    import oneflow as flow

    import autoddl
    from experiments import models

    graph, inputs = models.build("mlp", widths=[8, 8], batch=4)
    graph.set_grad_scaler(flow.amp.GradScaler())
    return tuple(tensor.name for tensor in autoddl.capture(graph, *inputs).tensors)


def test_micro_batches_are_compiled_as_oneflow_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHAINS, "true")  # as a graph that accumulates by itself leaves it
    assert settings() == (False, None)
    assert settings(compute_stream=True) == (True, None)
    assert settings(micro_batches=2) == (True, "true")
    assert settings(micro_batches=2, tensors=scaled_tensors()) == (True, None)
    for sizes, chains in (((2, 2), "true"), ((1, 2), "true"), ((2, 1), None), ((2, 4), None)):
        assert settings(micro_batches=2, sizes=sizes) == (True, chains)
    assert settings() == (False, None)
    assert os.environ[CHAINS] == "true"


def test_settings_are_put_back_after_an_error() -> None:
    import oneflow as flow
    from oneflow.framework import session_context

    from autoddl.engine.oneflow.run.compile_settings import compiling

    session = session_context.GetDefaultSession()
    session.TryInit()
    program = SimpleNamespace(tensors=[])
    plan: Any = SimpleNamespace(
        micro_batches=1, compute_stream=True, parts=[], program=program, queue=None
    )
    for before in (False, True):
        flow.boxing.nccl.enable_use_compute_stream(before)
        try:
            with pytest.raises(RuntimeError), compiling(plan):
                assert session.resource.nccl_use_compute_stream
                raise RuntimeError
            assert session.resource.nccl_use_compute_stream == before
        finally:
            flow.boxing.nccl.enable_use_compute_stream(False)


def test_launches_that_the_process_does_not_make_are_told() -> None:
    """Settings count that were made before the session began, whatever its resource says."""
    import oneflow as flow

    from autoddl.engine.oneflow.model.collective_queue import NCCL_QUEUE

    settings(queue=NCCL_QUEUE)
    try:
        flow.boxing.nccl.set_fusion_max_ops_num(24)  # too late
        settings(queue=NCCL_QUEUE)
        with pytest.warns(UserWarning, match="to 16 MiB and 24 .* joins up to 16 and 64;"):
            settings(queue=replace(NCCL_QUEUE, max_ops=24))
    finally:
        flow.boxing.nccl.set_fusion_max_ops_num(64)
