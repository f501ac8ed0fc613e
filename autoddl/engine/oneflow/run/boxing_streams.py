"""Which streams OneFlow runs boxings on: a setting of the session that compilations read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import oneflow as flow
from oneflow.framework import session_context


@contextmanager
def streams(*, compute_stream: bool) -> Iterator[None]:
    """Let what is compiled inside run boxings as ops of the compute stream, or leave the setting."""
    if not compute_stream:
        yield
        return
    session = session_context.GetDefaultSession()
    session.TryInit()
    before = session.resource.nccl_use_compute_stream
    flow.boxing.nccl.enable_use_compute_stream(True)
    try:
        yield
    finally:
        flow.boxing.nccl.enable_use_compute_stream(before)
