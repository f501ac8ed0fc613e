"""DLRM and the mixture-of-experts models: they are captured, they learn, experts do what they say."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_program import run_program
from tests.support.eager_steps import eager_loss, eager_losses

MODELS = [
    ("dlrm", {}),
    ("moe", {"kind": "switch"}),
    ("moe", {"kind": "sgmoe"}),
    ("moe", {"kind": "sgmoe", "balance": 0.1}),
    ("bert_moe", {"kind": "switch"}),
    ("bert_moe", {"kind": "sgmoe"}),
    ("bert_moe", {"kind": "sgmoe", "balance": 0.1}),
    ("vit_moe", {"kind": "switch"}),
    ("vit_moe", {"kind": "sgmoe"}),
    ("vit_moe", {"kind": "sgmoe", "balance": 0.1}),
]
# Each model and each way of choosing experts.
PAIRS = [MODELS[0], MODELS[3], MODELS[4], MODELS[8]]


def case(model: tuple[str, dict[str, Any]]) -> Any:
    name, more = model
    return pytest.param(name, more, id="-".join(map(str, (name, *more.values()))))


def toy(name: str, more: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    from experiments.models.training import seed_weights

    model = import_module(f"experiments.models.{name}")
    graph, inputs = model.build(**{**model.SIZES["toy"], **more})
    import oneflow as flow

    seed_weights(graph.model.to(flow.nn.Module), 1)
    return graph, inputs


@pytest.mark.oneflow
@pytest.mark.parametrize(("name", "more"), [case(model) for model in MODELS[1:]])
def test_choices_of_experts_are_clear(
    name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding must not change a choice: over the steps the best two are far apart."""
    import oneflow as flow

    from experiments.models.moe import SwitchFeedForward
    from experiments.models.training import OPTIMIZERS

    graph, inputs = toy(name, more)
    module = graph.model.to(flow.nn.Module)
    margins: list[float] = []
    likeliest = SwitchFeedForward.likeliest

    def watched(self: Any, probability: Any) -> Any:
        best = np.sort(probability.detach().numpy(), axis=-1)
        margins.append(float((best[..., -1] - best[..., -2]).min()))
        return likeliest(self, probability)

    monkeypatch.setattr(SwitchFeedForward, "likeliest", watched)
    update = OPTIMIZERS["sgd"](module.parameters())
    for _ in range(3):
        eager_loss(graph, inputs).backward()
        update.step()
        update.zero_grad()
    assert len(margins) >= 3
    assert min(margins) > 5e-5


@pytest.mark.oneflow
@pytest.mark.parametrize(("name", "more"), [case(model) for model in PAIRS])
def test_toy_models_are_captured_and_learn(name: str, more: dict[str, Any]) -> None:
    """Loss and gradients, op by op in NumPy, are OneFlow's; a few steps lessen the loss."""
    import oneflow as flow

    import autoddl

    graph, inputs = toy(name, {**more, "optimizer": "plain_sgd"})
    module = graph.model.to(flow.nn.Module)
    program = autoddl.capture(graph, *inputs)
    assert program.loss is not None
    assert program.tensor[program.loss].shape == ()
    assert len(program.ops) <= 330
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    path = {
        p.tensor: p.tensor.removeprefix("model.").removesuffix("/out") for p in program.parameters
    }
    given = dict(zip(program.inputs, inputs, strict=True)) | {t: tensors[path[t]] for t in path}
    arrays = {t: tensor.numpy() for t, tensor in given.items()}
    values = {t: a.astype(float) if a.dtype.kind == "f" else a for t, a in arrays.items()}
    known = run_program(program, values)
    loss = eager_loss(graph, inputs)
    loss.backward()
    assert float(known[str(program.loss)]) == pytest.approx(float(loss.numpy()), rel=1e-5)
    gradients = {p.tensor: known[p.gradient] for p in program.parameters if p.gradient}
    assert len(gradients) == len(list(module.parameters()))
    for tensor, gradient in gradients.items():
        np.testing.assert_allclose(given[tensor].grad.numpy(), gradient, rtol=1e-3, atol=2e-6)
    losses = eager_losses(graph, inputs, 4)
    assert np.all(np.isfinite(losses))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


@pytest.mark.oneflow
def test_losses_with_balance_differ_by_its_weight() -> None:
    graph, inputs = toy("moe", {"kind": "switch"})
    plain = float(eager_loss(graph, inputs).numpy())
    totals = []
    for weight in (0.1, 0.2):
        graph, inputs = toy("moe", {"kind": "switch", "balance": weight})
        totals.append(float(eager_loss(graph, inputs).numpy()))
    term = (totals[0] - plain) / 0.1
    assert 0.9 < term < 4  # 1 if all experts get the same share, 4 if one gets everything
    assert totals[1] == pytest.approx(plain + 0.2 * term, rel=1e-5)


def by_token(kind: str, x: np.ndarray, weights: dict[str, np.ndarray], capacity: int) -> Any:
    """Route token by token: (y, tokens that found no room)."""
    logits = x @ weights["gate.weight"].T
    probability = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    choices = 1 if kind == "switch" else 2
    order = np.argsort(-probability, axis=-1)[..., :choices]
    y, dropped = np.zeros_like(x), 0
    for group in range(len(x)):
        taken = np.zeros(probability.shape[-1], int)
        for rank in range(choices):
            for token in range(x.shape[1]):
                expert = order[group, token, rank]
                taken[expert] += 1
                if taken[expert] > capacity:
                    dropped += 1
                    continue
                gate = probability[group, token, expert]
                if choices == 2:
                    gate = gate / probability[group, token, order[group, token]].sum()
                hidden = np.maximum(x[group, token] @ weights["up"][expert], 0)
                y[group, token] += gate * (hidden @ weights["down"][expert])
    return y, dropped


@pytest.mark.oneflow
@pytest.mark.parametrize("kind", ["switch", "sgmoe"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_expert_layer_equals_routing_by_token(kind: str, factor: float) -> None:
    import oneflow as flow

    from experiments.models.moe import KINDS

    flow.manual_seed(0)
    layer = KINDS[kind](6, experts=4, group=8, hidden=10, factor=factor)
    x = np.random.default_rng(1).normal(size=(3, 16, 6)).astype(np.float32)
    weights = {name: p.numpy() for name, p in layer.named_parameters()}
    expected, dropped = by_token(kind, x.reshape(6, 8, 6), weights, layer.capacity)
    assert (dropped > 0) == (factor < 4)
    got = layer(flow.tensor(x)).numpy()
    np.testing.assert_allclose(got, expected.reshape(3, 16, 6), rtol=1e-4, atol=1e-5)


@pytest.mark.oneflow
def test_every_second_block_has_experts() -> None:
    import oneflow as flow

    graph, _ = toy("bert_moe", {"layers": 4, "every": 2})
    kinds = [type(b.feed_forward).__name__ for b in graph.model.to(flow.nn.Module).encoder.blocks]
    assert kinds == ["DenseFeedForward", "SGMoEFeedForward"] * 2


@pytest.mark.oneflow
def test_dlrm_equals_numpy() -> None:
    import oneflow as flow

    graph, (dense, ids, clicks) = toy("dlrm", {})
    w = {k: v.numpy() for k, v in graph.model.to(flow.nn.Module).named_parameters()}

    def layer(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    x = layer(np.maximum(layer(dense.numpy(), "bottom.0"), 0), "bottom.2")
    vectors = [np.maximum(x, 0)]
    for table in range(7):
        vectors.append(
            w[f"tables.{table}.weight"][ids.numpy()[:, 2 * table : 2 * table + 2]].sum(1)
        )
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(8) for j in range(i)]
    top = np.concatenate([vectors[0], np.stack(products, axis=1)], axis=1)
    logits = layer(np.maximum(layer(top, "top.0"), 0), "top.2")
    sign = 1 - 2 * clicks.numpy()
    expected = np.log1p(np.exp(sign * logits)).mean()
    loss = eager_loss(graph, (dense, ids, clicks))
    assert float(loss.numpy()) == pytest.approx(expected, rel=1e-5)
