"""Programs of one micro-batch beside what the engine traces at that size."""

from __future__ import annotations

from typing import Any

import pytest

from autoddl.sbp.rewrites.micro_batch import micro_batch

pytestmark = pytest.mark.oneflow
BATCH = 12
# Those of which a variant is below, and those that are a model with other sizes, are left out.
MODELS = ("mlp", "alexnet", "resnet50", "gpt", "transgan", "t5", "llama", "dlrm")


def check(graph: Any, *inputs: Any, counts: tuple[int, ...] = (3, BATCH)) -> None:
    """Compare what comes of the whole batch's program with the engine's traces of micro-batches."""
    from autoddl.engine.oneflow.capture.reader import capture

    whole = capture(graph, *inputs)
    for count in counts:
        part = capture(graph, *(x[: x.shape[0] // count] for x in inputs))
        assert micro_batch(whole, count) == part, f"{count} micro-batches"


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo(name: str) -> None:
    from experiments.models import build

    graph, inputs = build(name, "toy", batch=BATCH)
    check(graph, *inputs, counts=(BATCH,))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert", {"next_sentence": True}),
        ("bert_moe", {"balance": 0.01, "optimizer": "adam"}),
        ("unet", {"norm": True}),
        ("vit_moe", {"balance": 0.01, "kind": "switch"}),
    ],
    ids=str,
)
def test_variants_of_models(name: str, sizes: dict[str, Any]) -> None:
    from experiments.models import build

    graph, inputs = build(name, "toy", batch=BATCH, **sizes)
    check(graph, *inputs, counts=(4, BATCH))


# What models do with rows x (batch, 6, 8), and a parameter p (1, 6, 8), before a mean of squares.
IDIOMS = {
    "dropout": "nn.functional.dropout(x, 0.1)",
    "noise": "x + flow.randn(*x.shape)",
    "drop path": "x * (flow.rand(x.shape[0], 1, 1) > 0.1).to(x.dtype)",
    "expanded parameter": "x * p.expand(x.shape[0], 6, 8)",
    "repeated parameter": "flow.cat([p.repeat(x.shape[0], 1, 1), x], dim=1)",
    "zeros as a token": "flow.cat([flow.zeros(x.shape[0], 1, 8), x], dim=1)",
    "mask": "x.masked_fill(flow.tril(flow.ones(x.shape[0], 6, 8)) == 0, -9.0)",
    "numbered samples": "x + flow.arange(x.shape[0]).to(flow.float32).reshape(-1, 1, 1)",
    "batch behind time": "(x + p).transpose(0, 1).reshape(-1, 8)",
    "mean over the batch": "x - x.mean(dim=0, keepdim=True)",
    "largest of the batch": "x.amax(dim=0)",
    "mean loss in one op": "nn.functional.binary_cross_entropy_with_logits(x, flow.ones_like(x))",
    "look-up": "flow.gather(x, 1, flow.argmax(x, dim=-1).unsqueeze(-1) % 6)",
    "heads": "flow.softmax(flow.matmul(x, x.transpose(1, 2)), dim=-1) @ x",
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms(idiom: str) -> None:
    import oneflow as flow
    from oneflow import nn

    class Step(nn.Graph):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: Any) -> Any:
            loss = self.model(x)
            loss.backward()
            return loss

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.p = nn.Linear(8, 8), nn.Parameter(flow.ones(1, 6, 8))

        def forward(self, x: Any) -> Any:
            names = {"flow": flow, "nn": nn, "x": self.layer(x), "p": self.p}
            return eval(IDIOMS[idiom], names).square().mean()

    flow.manual_seed(0)
    check(Step(Model()), flow.randn(BATCH, 6, 8))
