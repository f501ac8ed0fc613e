"""Transformers of the zoo: each traces to a Program, trains, and has shapes that cut evenly."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_program import run_program
from tests.support.eager_steps import eager_loss, eager_losses
from tests.support.model_sizes import parameters

pytestmark = pytest.mark.oneflow

# DNABERT is BERT with another vocabulary.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bert", {"next_sentence": True, "optimizer": "adamw"}),
    ("vit", {}),
    ("t5", {"gated": True}),
    ("llama", {"groups": 8}),
    ("transgan", {"depths": (0, 0, 1)}),
)


def module(name: str) -> Any:
    return importlib.import_module(f"experiments.models.{name}")


@pytest.mark.parametrize(
    ("name", "size", "published"),
    [
        ("bert", "bert_large", 335e6), ("dnabert", "dnabert", 89e6), ("vit", "vit_huge", 632e6),
        ("t5", "t5_11b", 11.3e9), ("llama", "llama_7b", 6.74e9), ("llama", "llama2_70b", 69.0e9),
    ],
)  # fmt: skip
def test_sizes_have_the_published_number_of_parameters(
    name: str, size: str, published: float
) -> None:
    """Counted with one and two layers; the others add as much each."""
    sizes = module(name).SIZES[size]
    one, two = (parameters(name, **sizes | {"layers": n, "batch": 4}) for n in (1, 2))
    assert one + (sizes["layers"] - 1) * (two - one) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("name", "sizes"), VARIANTS, ids=str)
def test_a_toy_is_captured_and_learns(name: str, sizes: dict[str, Any]) -> None:
    """Loss and gradients are those of the engine's kernels in NumPy, too; steps lessen the loss."""
    from oneflow import nn

    import autoddl
    from experiments.models.training import seed_weights

    graph, inputs = module(name).build(**sizes)
    model = graph.model.to(nn.Module)
    seed_weights(model, 1)
    program = autoddl.capture(graph, *inputs)
    assert len(program.ops) <= (400 if name == "t5" else 300)
    assert all(p.update is not None for p in program.parameters if "weight" in p.tensor)
    tensors = {f"model.{key}": t for key, t in (*model.named_parameters(), *model.named_buffers())}
    arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    arrays |= {key: x.numpy() for key, x in zip(program.inputs, inputs, strict=True)}
    wide = {key: a.astype(float) if a.dtype.kind == "f" else a for key, a in arrays.items()}
    known = run_program(program, wide)
    loss = eager_loss(graph, inputs)
    loss.backward()
    assert program.loss is not None
    np.testing.assert_allclose(known[program.loss], loss.numpy(), rtol=1e-5)
    for parameter in program.parameters:
        if parameter.gradient is not None:
            gradient = tensors[parameter.tensor].grad.numpy()
            np.testing.assert_allclose(known[parameter.gradient], gradient, rtol=1e-3, atol=1e-5)
    losses = eager_losses(graph, inputs, 4, sizes.get("optimizer", "sgd"))
    assert np.all(np.isfinite(losses))
    assert losses[-1] < losses[0]


def test_experts_may_replace_feed_forward_layers() -> None:
    from oneflow import nn

    import autoddl

    for name in ("bert", "vit"):
        graph, inputs = module(name).build(feed_forward=lambda width: nn.Linear(width, width))
        types = [op.type for op in autoddl.capture(graph, *inputs).ops if op.phase == "forward"]
        assert types.count("gelu") == (1 if name == "bert" else 0)  # BERT's head has one


def test_positions_fall_into_the_papers_buckets() -> None:
    """Near distances have a bucket each, far ones share the last; both directions differ."""
    from experiments.models.t5 import position_buckets

    both = position_buckets(200, 200, both_ways=True)
    assert both[0, :9].tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24]
    assert both[:9, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert both[199, 0] == 15 and both[0, 199] == 31
    back = position_buckets(200, 200, both_ways=False)
    assert back[:17, 0].tolist() == [*range(16), 16]
    assert back[199, 0] == 31 and not back[0].any()


def test_llama_does_not_look_ahead() -> None:
    model = module("llama")
    graph, (ids, _) = model.build()
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 64
    before, after = graph.model(ids).numpy(), graph.model(changed).numpy()
    assert np.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not np.allclose(before[:, 5:], after[:, 5:], atol=1e-3)
    assert before.shape == (8, 8, 64)


@pytest.mark.parametrize(
    ("name", "sizes", "kind", "count"),
    [
        ("bert", {"dropout": 0.1}, "dropout", 1 + 3), ("gpt", {"dropout": 0.1}, "dropout", 1 + 2 * 3),
        ("gpt", {}, "dropout", 0), ("vit", {"drop_path": 0.3}, "uniform", 2), ("vit", {}, "uniform", 0),
    ],
)  # fmt: skip
def test_what_is_random_is_in_every_place(
    name: str, sizes: dict[str, Any], kind: str, count: int
) -> None:
    import autoddl

    graph, inputs = module(name).build(**sizes)
    types = [op.type for op in autoddl.capture(graph, *inputs).ops if op.phase == "forward"]
    assert types.count(kind) == count


def test_stochastic_depth_keeps_what_a_block_adds_on_average() -> None:
    import oneflow as flow

    from experiments.models.transformer import DropPath

    flow.manual_seed(0)
    path, x = DropPath(0.25), flow.ones(4000, 2, 3)
    drawn = path(x).numpy()
    assert np.all(drawn == drawn[:, :1, :1])  # whole samples
    assert set(np.unique(drawn)) == {0.0, np.float32(1 / 0.75)}
    assert drawn.mean() == pytest.approx(1.0, abs=0.05)
    path.eval()
    assert path(x) is x


def test_later_blocks_are_left_out_more_often() -> None:
    graph, _ = module("vit").build(layers=4, drop_path=0.4)
    kept = [block.path.kept for block in graph.model.blocks]
    assert kept == pytest.approx([0.9, 0.8, 0.7, 0.6])
