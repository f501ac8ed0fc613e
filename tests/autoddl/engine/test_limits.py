"""What engines can execute, known without them."""

from __future__ import annotations

import pytest

from autoddl.engine.limits import (
    COMPUTE_STREAM,
    ENGINES,
    ONEFLOW,
    SEPARATE_STREAMS,
    StreamUse,
    limits_of,
)
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


@pytest.mark.parametrize(
    ("way", "device", "alone", "in_stages", "accumulating"),
    [
        (SEPARATE_STREAMS, "cpu", True, True, True),
        (SEPARATE_STREAMS, "cuda", True, True, False),
        (COMPUTE_STREAM, "cpu", False, False, False),
        (COMPUTE_STREAM, "cuda", True, False, True),
    ],
)
def test_which_plans_run_on_which_streams(
    way: StreamUse, device: str, alone: bool, in_stages: bool, accumulating: bool
) -> None:
    assert way.runs_for(device) == alone
    assert way.runs_for(device, 2, 1) == way.runs_for(device, 0, 1) == in_stages
    assert way.runs_for(device, 1, 4) == way.runs_for(device, 2, 4) == accumulating
