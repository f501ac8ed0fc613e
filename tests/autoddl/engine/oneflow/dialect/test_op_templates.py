"""Templates compute what the model computes: generated scripts of small models, in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.oneflow

# x is (4, 6, 8), image (4, 6, 8, 8); both have gone through parameters, so that gradients flow.
ON_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "pow": lambda flow, x: x.pow(2),
    "sqrt": lambda flow, x: (x * x + 1.0).sqrt(),
    "exp_log": lambda flow, x: (x.exp() + 1).log(),
    "trigonometry": lambda flow, x: x.sin() * x.cos() - x.abs(),
    "tanh": lambda flow, x: flow.tanh(x) + flow.sigmoid(x),
    "activations": lambda flow, x: flow.nn.functional.mish(x) * flow.nn.functional.elu(x, 1.0),
    "silu_relu": lambda flow, x: flow.nn.functional.silu(x) + flow.relu(x),
    "erf": lambda flow, x: flow.erf(x) - x.negative(),
    "rounding": lambda flow, x: x * flow.floor(x) + x * flow.ceil(x),
    "variance": lambda flow, x: x.var(dim=1, unbiased=True, keepdim=True) + x,
    "extremes": lambda flow, x: x - x.amax(dim=-1, keepdim=True) + x.amin(dim=-1, keepdim=True),
    "maximum": lambda flow, x: flow.maximum(x, x * 2) - flow.minimum(x, x * 3),
    "comparisons": lambda flow, x: x.masked_fill(x > 0.5, -1.0) + x.masked_fill(x < x * 2, 0.5),
    "where": lambda flow, x: flow.where(x == x, x, x * 2),
    "softmax": lambda flow, x: flow.softmax(x, dim=-1).log() + flow.log_softmax(x, dim=-1),
    "stack": lambda flow, x: flow.stack([x, x * 2], dim=1),
    "squeeze": lambda flow, x: x[:, :1].squeeze(1) * 2 + x[:, 1],
    "steps": lambda flow, x: x[:, ::2] * x[:, 1::2],
    "unsqueeze": lambda flow, x: x.unsqueeze(1).expand(4, 3, 6, 8).sum(dim=(1, 2)),
    "cumsum": lambda flow, x: flow.cumsum(x, dim=1),
    "argmax": lambda flow, x: x * flow.nn.functional.one_hot(x.argmax(dim=-1), 8).float(),
    "batch_matmul": lambda flow, x: flow.bmm(x, x.transpose(1, 2)),
    "index_select": lambda flow, x: x.index_select(1, flow.arange(0, 6, 2)),
    "scalars": lambda flow, x: (x - 1) / 3 * 2.5 + 1e-3,
    "mean": lambda flow, x: x.mean(dim=1) * x.mean(dim=(0, 1)),
    "triangles": lambda flow, x: flow.tril(x, 1) - flow.triu(x),
    "hard": lambda flow, x: flow.nn.functional.hardswish(x) + flow.nn.functional.hardsigmoid(x),
    "relu6": lambda flow, x: flow.nn.ReLU6()(9 * x) - flow.nn.Hardtanh(-0.5, 1.0)(x),
    "soft": lambda flow, x: flow.nn.functional.softplus(x) + flow.nn.functional.logsigmoid(x),
    "gelus": lambda flow, x: (
        flow.nn.functional.gelu(x, approximate="tanh") + flow.nn.functional.quick_gelu(x)
    ),
    "leaky": lambda flow, x: flow.nn.functional.leaky_relu(x, 0.2) - flow.nn.functional.selu(x),
    "clamp": lambda flow, x: x.clamp(-0.5, 0.5) + x.clamp(min=-0.2) + x.clamp(max=0.2),
    "reverse_pow": lambda flow, x: 2.0**x + 1 / (x * x + 1),
    "chunks": lambda flow, x: x.chunk(2, dim=-1)[0] * x.chunk(2, dim=-1)[1],
    "not": lambda flow, x: x.masked_fill(flow.logical_not(x > 0), 0.1) + flow.flip(x, [1]),
    "pad": lambda flow, x: flow.nn.functional.pad(x, (1, 2), value=0.5),
    "product": lambda flow, x: flow.prod(x, dim=1),
    "conv1d": lambda flow, x: flow.nn.functional.conv1d(x, flow.ones(3, 6, 3), padding=1),
    "arange": lambda flow, x: x + flow.arange(8, dtype=flow.float32),
    "ones": lambda flow, x: x + flow.ones(6, 8) - flow.zeros_like(x),
    "bernoulli": lambda flow, x: (
        x * flow.bernoulli(flow.ones(6, 8), p=0.3) + flow.bernoulli(flow.full((4, 1, 1), 0.6))
    ),
    "permutation": lambda flow, x: x.index_select(1, flow.randperm(6)),
}
ON_IMAGES: dict[str, Callable[[Any, Any], Any]] = {
    "max_pool": lambda flow, x: flow.nn.functional.max_pool2d(x, 3, stride=2, padding=1),
    "avg_pool": lambda flow, x: flow.nn.functional.avg_pool2d(x, 2, stride=2),
    "upsample": lambda flow, x: flow.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"),
    "adaptive_pool": lambda flow, x: flow.nn.functional.adaptive_avg_pool2d(x, (2, 2)),
}


def loss_and_gradient(build: Callable[[], Any], x: np.ndarray, folder: Path) -> Any:
    """Return losses and gradients of a model's first layer: eagerly, and by its script."""
    import oneflow as flow

    import autoddl
    from experiments.models.training import seed_weights
    from experiments.models.transformer import LossGraph

    model = build()
    seed_weights(model, 0, 0.5)
    inputs = (flow.tensor(x),)
    plan = autoddl.optimize(LossGraph(model, "plain_sgd"), *inputs, mesh="1", search="coordinate")
    plan.codegen(folder / "script.py")
    spec = importlib.util.spec_from_file_location("generated", folder / "script.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    flow.save(model.state_dict(), str(folder / "weights"))
    params = script.load_parameters(str(folder / "weights"))
    ((_, _, sbp, _),) = script.INPUTS.values()
    flow.manual_seed(5)
    loss = script.loss_of(params, script.as_global(x, sbp))
    loss.backward()
    flow.manual_seed(5)
    expected = model(inputs[0])
    expected.backward()
    found = script.as_whole(params["first.weight"].grad)
    return (expected.numpy(), model.first.weight.grad.numpy()), (script.as_whole(loss), found)


@pytest.mark.parametrize("name", [*ON_ROWS, *ON_IMAGES])
def test_a_script_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    import oneflow as flow

    class Model(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            image = name in ON_IMAGES
            self.first = flow.nn.Conv2d(3, 6, 1) if image else flow.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return {**ON_ROWS, **ON_IMAGES}[name](flow, self.first(x)).square().mean()

    shape = (4, 3, 8, 8) if name in ON_IMAGES else (4, 6, 8)
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    expected, found = loss_and_gradient(Model, x, tmp_path)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["rand", "uniform", "randn", "normal"])
def test_a_script_draws_as_the_model_does(kind: str, tmp_path: Path) -> None:
    import oneflow as flow

    class Model(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = flow.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            many = (4, 6, 2000)
            drawn = {
                "rand": lambda: flow.rand(*many), "uniform": lambda: flow.empty(*many).uniform_(-1, 2),
                "randn": lambda: flow.randn(*many), "normal": lambda: flow.normal(1.0, 0.5, size=many),
            }[kind]()  # fmt: skip
            return ((self.first(x) * 0).sum(dim=-1, keepdim=True) + drawn).square().mean()

    x = np.ones((4, 6, 8), dtype=np.float32)
    _, (loss, _) = loss_and_gradient(Model, x, tmp_path)
    mean_square = {"rand": 1 / 3, "uniform": 1.0, "randn": 1.0, "normal": 1.25}[kind]
    assert float(loss) == pytest.approx(mean_square, rel=0.03) and float(loss) != mean_square
