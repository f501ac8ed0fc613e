"""Tensors that a graph's code makes or keeps itself are known, whatever was traced before."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import autoddl
from autoddl.errors import AutoDDLError

pytestmark = pytest.mark.oneflow

MASK = np.arange(16, dtype=np.float32).reshape(4, 4)


def graph_of(mask: Any, fails: bool = False) -> Any:
    """Return a graph of a linear layer, an index that `forward` makes, and a mask that is no buffer."""
    import oneflow as flow

    class Model(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.mask = flow.nn.Linear(4, 4), mask

        def forward(self, x: Any) -> Any:
            return flow.matmul(self.inner(x)[:, flow.tensor([3, 1, 1, 0])], self.mask)

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.model(x).mean()
            if fails:
                raise ValueError("the user's")
            loss.backward()
            return loss

    return Train()


def batch() -> Any:
    import oneflow as flow

    return flow.ones(8, 4)


def test_constants_have_digests_of_their_values() -> None:
    import oneflow as flow

    program = autoddl.capture(graph_of(flow.tensor(MASK)), batch())
    digests = dict(program.constants)
    shapes = sorted(program.tensor[name].shape for name in digests)
    assert shapes == [(4,), (4, 4), (4, 4)]  # the mask is there once for each pass
    assert {program.tensor[name].role for name in digests} == {"buffer"}
    assert len(set(digests.values())) == 2
    other = autoddl.capture(graph_of(flow.tensor(MASK + 1)), batch())
    assert other.fingerprint == program.fingerprint
    changed = [name for name in digests if dict(other.constants)[name] != digests[name]]
    assert sorted(program.tensor[name].shape for name in changed) == [(4, 4), (4, 4)]


def test_a_tensor_may_be_traced_again() -> None:
    """OneFlow aborts where a trace meets an eager tensor that a trace before has met."""
    import oneflow as flow

    mask = flow.tensor(MASK)
    with pytest.raises(AutoDDLError, match="the user's"):
        autoddl.capture(graph_of(mask, fails=True), batch())
    first, second = (autoddl.capture(graph_of(mask), batch()) for _ in range(2))
    assert first.constants == second.constants


def test_a_built_graph_keeps_its_constants() -> None:
    import oneflow as flow

    graph = graph_of(flow.tensor(MASK))
    graph.build_graph(batch())
    program = autoddl.capture(graph)
    assert program.constants
    graph.finish_complie_and_init_runtime()
    weight = graph.model.inner.weight.to(flow.Tensor).numpy()
    bias = graph.model.inner.bias.to(flow.Tensor).numpy()
    expected = ((weight.sum(axis=1) + bias)[[3, 1, 1, 0]] @ MASK).mean()
    assert float(graph(batch()).numpy()) == pytest.approx(expected, rel=1e-5)
    assert autoddl.capture(graph).constants == program.constants


@pytest.mark.ranks
def test_a_plan_trains_with_the_constants_of_the_graph_that_it_is_applied_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import oneflow as flow

    plan = autoddl.optimize(graph_of(flow.tensor(MASK)), batch(), mesh="1")
    for mask, told in ((MASK, 0), (MASK + 1, 1)):
        caplog.clear()
        graph = graph_of(flow.tensor(mask))
        rows = graph.model.inner(batch()).numpy()[:, [3, 1, 1, 0]]
        with caplog.at_level(logging.WARNING):
            step = plan.apply(graph)
            loss = float(step(batch()).to_local().numpy())
        assert loss == pytest.approx((rows @ mask).mean(), rel=1e-5)
        lines = [line for line in caplog.messages if "constants of the graph" in line]
        assert len(lines) == told
        step.close()


def test_traces_of_micro_batches_have_the_same_names() -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.constants import constants_of
    from autoddl.engine.oneflow.capture.reader import traced_alone
    from autoddl.engine.oneflow.job import accumulation

    graph = graph_of(flow.tensor(MASK))
    names = dict(autoddl.capture(graph, batch()).constants)
    twin = traced_alone(graph, ((batch(),), {}), "cpu", micro_batches=2)
    found = constants_of(twin)
    renamed = accumulation.rename(twin._full_job_proto, twin._forward_job_proto)
    assert {renamed.get(name, name) for name in found} == names.keys()
    assert any(op.name in names for op in twin._full_job_proto.net.op)


def test_constants_without_values_are_refused() -> None:
    import oneflow as flow

    with autoddl.abstract_parameters():
        graph = graph_of(flow.randn(4, 4))
    with pytest.raises(
        AutoDDLError, match=r"constant model-FreeEagerTensor-\d+, of shape \(4, 4\)"
    ):
        autoddl.capture(graph, batch())


def test_scripts_with_constants_are_refused() -> None:
    import oneflow as flow

    plan = autoddl.optimize(graph_of(flow.tensor(MASK)), batch(), mesh="2")
    with pytest.raises(AutoDDLError, match="3 tensors that are no parameters or buffers, first"):
        plan.codegen("script.py")
