"""OneFlow as planning sees it, and what there is for any engine's model."""

from __future__ import annotations

import pytest

from autoddl.engine.model import EngineModel, StreamUse
from autoddl.engine.oneflow.model.engine_model import COMPUTE_STREAM, ONEFLOW, SEPARATE_STREAMS
from autoddl.perfmodel.pipeline.schedules import SCHEDULES
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.rules.registry import find
from autoddl.search.network.choices import choices


@pytest.mark.parametrize("engine", [ONEFLOW, ONEFLOW.whole_space()])
def test_a_model_names_what_there_is(engine: EngineModel) -> None:
    assert engine.streams[0] == SEPARATE_STREAMS
    assert engine.schedule in SCHEDULES
    assert [op_type for op_type in engine.limits.refused if find(op_type) is None] == []


def test_in_the_whole_space_all_that_is_right_is_allowed() -> None:
    some, every = ONEFLOW.limits, ONEFLOW.whole_space().limits
    assert (some.axes, some.any_order) == (2, False) and "P dy_0" in some.refused["abs_grad"]
    assert (every.any_order, every.refused) == (True, {})


def test_the_compute_stream_has_meshes_of_two_axes() -> None:
    found = [COMPUTE_STREAM.runs_on(Mesh.parse(mesh)) for mesh in ("8", "2x4", "2x1x4", "2x2x2")]
    assert found == [True, True, True, False]
    assert SEPARATE_STREAMS.runs_on(Mesh.parse("2x2x2"))


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


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        ((), (1,), {"(B)"}),
        ((), (1, 1), {"(B)"}),
        ((1,), (), {"(B)", "(P)"}),
        ((1,), (1, 1), {"(B)", "(P)"}),
    ],
)
def test_no_partial_sum_goes_through_a_reshape_of_a_0_d_tensor(
    before: tuple[int, ...], after: tuple[int, ...], states: set[str]
) -> None:
    """OneFlow has no such signature, and would end the plan of a loss that is reshaped."""
    op = Op("op", "reshape", (("in_0", "x"),), (("out_0", "y"),), (("shape", after),))
    tensors = tuple(
        Tensor(name, shape, "float32", "activation")
        for name, shape in (("x", before), ("y", after))
    )
    program = Program((op,), tensors, ("x",), ("y",), (), None)
    found = choices(program, op, Mesh.parse("2"), limits=ONEFLOW.limits)
    assert {str(signature["in_0"]) for signature in found} == states
