"""Parameters without memory are moved and given data as others are."""

from __future__ import annotations

import pytest

import autoddl

pytestmark = pytest.mark.oneflow


def test_a_module_stays_without_memory_where_it_is_put_on_its_own_device() -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture import abstract

    with autoddl.abstract_parameters():
        layer = flow.nn.Linear(1 << 20, 1 << 20).to("cpu")  # 4 TiB
    assert abstract.told(layer.weight) and layer.weight.shape == (1 << 20, 1 << 20)


def test_data_that_a_parameter_is_given_is_its_own() -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture import abstract

    with autoddl.abstract_parameters():
        real, drawn, of = flow.nn.Linear(4, 4), flow.nn.Linear(4, 4), flow.nn.Linear(4, 4)
        flow.nn.init.constant_(of.weight, 2.0)
        real.weight.data = flow.tensor([[3.0] * 4] * 4)
        drawn.weight.data = of.weight
    assert not abstract.is_stand_in(real.weight)
    assert real.weight.numpy().tolist() == [[3.0] * 4] * 4
    assert abstract.told(drawn.weight)
    whole = (slice(0, 4), slice(0, 4))
    assert abstract.drawn(drawn.weight, whole).numpy().tolist() == [[2.0] * 4] * 4
