"""NumPy references of ops that roll, replace, unfold or take a norm equal the engine's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.rules import registry
from experiments.rule_cases import case
from tests.sbp.rules.test_pointwise_references import compare, draw


def _replaced(x: Any) -> Any:
    y = x * 2
    y[:, 1:6:2] = x[:, :3] * x[:, 3:6]
    return y


def _windowed(x: Any, size: int, step: int) -> Any:
    windows = x.unfold(1, size, step)
    return x * (windows * windows).sum(3).sum(1, keepdim=True)


def _functions() -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    """Return functions that keep the shape, with the shape."""
    import oneflow as flow

    f = flow.nn.functional
    image = (4, 4, 8, 6)
    return {
        "roll": (lambda x: flow.roll(x, (-1, 9), (1, 2)), (4, 8, 6)),
        "roll all": (lambda x: flow.roll(x, 5), (4, 8)),
        "roll the last dim, as OneFlow does": (lambda x: flow.roll(x, 5, -1), (4, 8)),
        "roll negative dims, as OneFlow does": (lambda x: flow.roll(x, (3, 1), (-2, 1)), (4, 8, 6)),
        "slice_update": (_replaced, (4, 8)),
        "fold tiles": (lambda x: f.fold(f.unfold(x * x, 2, stride=2), (8, 6), 2, stride=2), image),
        "fold overlaps": (
            lambda x: f.fold(
                f.unfold(x * x, (3, 2), dilation=2, padding=1, stride=(2, 1)),
                (8, 6), (3, 2), dilation=2, padding=1, stride=(2, 1),
            ), image,
        ),
        "unfold_tensor": (lambda x: _windowed(x, 4, 2), (4, 8, 3)),
        "unfold_tensor apart": (lambda x: _windowed(x, 2, 3), (4, 9, 3)),
        "sqrt_square_sum": (lambda x: x * flow.linalg.norm(x.detach()), (4, 8)),
    }  # fmt: skip


@pytest.mark.oneflow
@pytest.mark.filterwarnings("ignore:.*not registered into a nn.Graph")
def test_references_equal_the_engines_kernels() -> None:
    faults, types = {}, set()
    for name, (function, shape) in _functions().items():
        try:
            types |= compare(function, draw((-2.0, 2.0), *shape))
        except AssertionError as error:
            faults[name] = str(error)
    assert faults == {}
    assert types >= {
        "roll", "slice_update", "fold", "unfold", "unfold_tensor", "unfold_tensor_grad",
        "sqrt_square_sum",
    }  # fmt: skip


@pytest.mark.parametrize(
    "op_type",
    ["roll", "slice_update", "fold", "unfold", "unfold_tensor", "uniform", "bernoulli", "normal",
     "sqrt_square_sum"],
)  # fmt: skip
def test_ops_of_vision_models_have_rules(op_type: str) -> None:
    """Without one they are planned by OneFlow's lists, or whole on every device."""
    assert registry.find(op_type) is not None


@pytest.mark.parametrize(
    ("text", "attrs", "labels"),
    [
        ("roll in: 4 8 6 -> out: 4 8 6", {"shifts": (1, 2), "dims": (0, 2)}, {"B", "P in_0", "cut d1"}),
        ("roll in: 4 8 -> out: 4 8", {"shifts": (1,), "dims": (-1,)}, {"B", "P in_0"}),
        ("sqrt_square_sum x: 4 8 -> y:", {}, {"B"}),
        ("square_sum x: 4 8 -> y: 1", {}, {"B", "cut d0", "cut d1"}),
        ("normal -> out: 4 8", {}, {"B"}),
        ("bernoulli in: 4 8 -> out: 4 8", {}, {"B"}),
    ],
)  # fmt: skip
def test_what_may_be_cut(text: str, attrs: dict[str, Any], labels: set[str]) -> None:
    op_type, _, operands = text.partition(" ")
    assert set(registry.labelled(case(op_type, operands, **attrs))) == labels


@pytest.mark.parametrize(
    ("op_type", "value"), [("sqrt_square_sum", 5.0), ("multi_square_sum", 25.0)]
)
def test_norms_by_hand(op_type: str, value: float) -> None:
    rule = registry.find(op_type)
    view = case(op_type, "x: 2 -> y:")
    assert rule is not None
    op = registry.LocalOp(view, {"x_0": np.array([3.0, 4.0])}, {"x_0": (0,), "y_0": ()})
    assert rule.reference(op)["y_0"] == value


def test_probabilities_are_those_of_the_input_or_one() -> None:
    rule = registry.find("bernoulli")
    assert rule is not None
    given = {"in_0": np.repeat([0.0, 1.0], 500)}
    for attrs, rate in (({"p": -1.0}, 0.5), ({}, 0.5), ({"p": 0.8}, 0.8)):
        view = case("bernoulli", "in: 1000 -> out: 1000", seed=1, **attrs)
        drawn = rule.reference(registry.LocalOp(view, given, {}))["out_0"]
        assert set(drawn) == {0.0, 1.0}
        assert drawn.mean() == pytest.approx(rate, abs=0.05)
        assert (drawn == given["in_0"]).all() == ("p" not in attrs or attrs["p"] < 0)
