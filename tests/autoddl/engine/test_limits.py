"""What engines can execute, known without them."""

from __future__ import annotations

import pytest

from autoddl.engine.limits import COMPUTE_STREAM, ENGINES, ONEFLOW, SEPARATE_STREAMS, limits_of
from autoddl.errors import AutoDDLError
from autoddl.perfmodel.pipeline.schedules import SCHEDULES
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rules.registry import find


@pytest.mark.parametrize("engine", [*ENGINES, None])
def test_limits_name_what_there_is(engine: str | None) -> None:
    limits = limits_of(engine)
    assert limits.ways[0] == SEPARATE_STREAMS
    assert limits.schedules and set(limits.schedules) <= set(SCHEDULES)
    assert [op_type for op_type in limits.refused if find(op_type) is None] == []


def test_without_an_engine_all_that_is_right_is_allowed() -> None:
    some, every = limits_of(ONEFLOW), limits_of(None)
    assert (some.axes, some.any_order) == (2, False) and "P dy_0" in some.refused["abs_grad"]
    assert (every.axes, every.any_order, every.refused) == (None, True, {})


def test_the_compute_stream_has_meshes_of_two_axes() -> None:
    found = [COMPUTE_STREAM.runs_on(Mesh.parse(mesh)) for mesh in ("8", "2x4", "2x1x4", "2x2x2")]
    assert found == [True, True, True, False]
    assert SEPARATE_STREAMS.runs_on(Mesh.parse("2x2x2"))


def test_another_engine_is_refused() -> None:
    with pytest.raises(AutoDDLError, match=r"^engine: got 'jax'; allowed are oneflow or None$"):
        limits_of("jax")


def test_the_compute_stream_is_one_of_cuda_devices_without_stages() -> None:
    found = [COMPUTE_STREAM.runs_for(d, staged=s) for d in ("cuda", "cpu") for s in (False, True)]
    assert found == [True, False, False, False]
    assert all(SEPARATE_STREAMS.runs_for(d, staged=True) for d in ("cuda", "cpu"))
