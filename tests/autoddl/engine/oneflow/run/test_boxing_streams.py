"""The session's setting of streams."""

from __future__ import annotations

import pytest


@pytest.mark.oneflow
def test_the_setting_is_put_back() -> None:
    from oneflow.framework import session_context

    from autoddl.engine.oneflow.run.boxing_streams import streams

    session = session_context.GetDefaultSession()
    session.TryInit()
    for before in (False, True, False):
        with streams(compute_stream=before):
            with pytest.raises(RuntimeError), streams(compute_stream=True):
                assert session.resource.nccl_use_compute_stream
                raise RuntimeError
            assert session.resource.nccl_use_compute_stream == before
            with streams(compute_stream=False):
                assert session.resource.nccl_use_compute_stream == before
    assert not session.resource.nccl_use_compute_stream
