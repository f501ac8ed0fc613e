"""Kinds of training scripts, as users write them: what `rank_scripts/training_scripts.py` runs.

A case is a model, its optimizer, what the graph computes, and what it is called with. By default a
multi-layer perceptron, SGD with momentum, and the mean squared error of 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import oneflow as flow
from oneflow import nn

F = nn.functional
Batch = tuple[tuple[Any, ...], dict[str, Any]]
ROWS, IN, OUT = 16, 16, 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, 32), nn.ReLU(), nn.Linear(32, OUT))


def rows(rng: np.random.Generator) -> Batch:
    return (normal(rng, ROWS, IN), normal(rng, ROWS, OUT)), {}


def normal(rng: np.random.Generator, *shape: int) -> flow.Tensor:
    return flow.tensor(rng.normal(size=shape).astype(np.float32))


def whole_numbers(rng: np.random.Generator, below: int, *shape: int) -> flow.Tensor:
    return flow.tensor(rng.integers(0, below, shape))


def momentum(model: nn.Module) -> Any:
    return flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def squares(model: Any, x: Any, y: Any) -> Any:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss


@dataclass(frozen=True)
class Case:
    """A training script; `build` is what its graph does, `set_up` what it sets beside."""

    model: Callable[[], nn.Module] = mlp
    batch: Callable[[np.random.Generator], Batch] = rows
    optimizer: Callable[[nn.Module], Any] = momentum
    build: Callable[..., Any] = squares
    schedule: Callable[[Any], Any] | None = None
    set_up: Callable[[nn.Graph], Any] = lambda graph: None
    eager: bool = False
    """Whether it is held against an eager loop, since OneFlow's own graph is wrong."""


def by(make: Callable[[Any], Any]) -> Callable[[nn.Module], Any]:
    """Return what makes an optimizer of all parameters."""
    return lambda model: make(model.parameters())


def clipped(norm: float, most: float = 0.5) -> Callable[[nn.Module], Any]:
    def make(model: nn.Module) -> Any:
        group = {
            "params": list(model.parameters()), "clip_grad_max_norm": most,
            "clip_grad_norm_type": norm,
        }  # fmt: skip
        return flow.optim.SGD([group], lr=0.1)

    return make


def two_groups(model: nn.Module) -> Any:
    own = (
        [p for p in model.parameters() if p.ndim > 1],
        [p for p in model.parameters() if p.ndim < 2],
    )
    return flow.optim.AdamW(
        [{"params": own[0], "lr": 0.01, "weight_decay": 0.1}, {"params": own[1], "lr": 0.02}]
    )


def two_clipped_groups(model: nn.Module) -> Any:
    own = (
        [p for p in model.parameters() if p.ndim > 1],
        [p for p in model.parameters() if p.ndim < 2],
    )
    groups = [
        {"params": params, "clip_grad_max_norm": most, "clip_grad_norm_type": 2.0}
        for params, most in zip(own, (0.5, 0.1), strict=True)
    ]
    return flow.optim.SGD(groups, lr=0.1)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(IN, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, OUT))
    model[2].weight.requires_grad = False
    return model


class Tied(nn.Module):
    """Token embeddings that are the last layer's weights, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.inner = nn.Linear(16, 16)

    def forward(self, ids: Any) -> Any:
        return flow.matmul(F.gelu(self.inner(self.embedding(ids))), self.embedding.weight.T)


def tokens(rng: np.random.Generator) -> Batch:
    return (whole_numbers(rng, 32, ROWS, 8), whole_numbers(rng, 32, ROWS, 8)), {}


def entropy(model: Any, ids: Any, target: Any) -> Any:
    logits = model(ids)
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))
    loss.backward()
    return loss


class Attention(nn.Module):
    """Heads with rotary positions and a causal mask, between residual layers with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 32)
        at = np.arange(8)[:, None] / 10.0 ** (np.arange(4) / 4)
        self.register_buffer("cos", flow.tensor(np.cos(at).astype(np.float32)))
        self.register_buffer("sin", flow.tensor(np.sin(at).astype(np.float32)))
        mask = np.triu(np.full((8, 8), -1e4, np.float32), 1)
        self.register_buffer("mask", flow.tensor(mask))

    def _turned(self, x: Any) -> Any:
        left, right = x.chunk(2, dim=-1)
        return flow.cat(
            [left * self.cos - right * self.sin, left * self.sin + right * self.cos], dim=-1
        )

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        parts = self.qkv(self.norm(x)).reshape(-1, 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
        q, k, v = self._turned(parts[0]), self._turned(parts[1]), parts[2]
        scores = flow.matmul(q, k.transpose(-2, -1)) * 8**-0.5 + self.mask
        mixed = flow.matmul(flow.softmax(scores, dim=-1), v).transpose(1, 2).reshape(-1, 8, 32)
        x = x + self.out(mixed)
        return self.head(x + self.down(F.silu(self.gate(x)) * self.up(x)))


def images(rng: np.random.Generator) -> Batch:
    return (normal(rng, ROWS, 3, 8, 8), whole_numbers(rng, OUT, ROWS)), {}


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(1),
        nn.Linear(16, OUT),
    )  # fmt: skip


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(1),
        nn.Linear(8, OUT),
    )  # fmt: skip


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, 32), nn.Dropout(0.5), nn.Linear(32, OUT))


class Gated(nn.Module):
    """A scalar parameter, one that nothing reads, and one that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(IN, IN), nn.Linear(IN, OUT)
        self.scale = nn.Parameter(flow.ones(()))
        self.unread = nn.Parameter(flow.ones(4))

    def forward(self, x: Any) -> Any:
        return self.outer(flow.tanh(self.inner(flow.sigmoid(self.inner(x)))) * self.scale)


class Indexing(nn.Module):
    """An index that is made in each call, a mask and a table that no module knows as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(IN, IN), nn.Linear(IN, OUT)
        self.mask = flow.tensor((np.arange(IN) % 3 > 0).astype(np.float32))
        self.tables = [flow.tensor(np.linspace(-1, 1, IN * IN).reshape(IN, IN).astype(np.float32))]

    def forward(self, x: Any) -> Any:
        h = flow.matmul(self.inner(x) * self.mask, self.tables[0])
        return self.outer(h[:, flow.tensor([3, 1, 1, 0] * (IN // 4))] + self.mask[0])


def read_ones(model: nn.Module) -> Any:
    return flow.optim.SGD([p for n, p in model.named_parameters() if n != "unread"], lr=0.1)


def several(model: Any, x: Any, y: Any) -> Any:
    out = model(x)
    loss = F.mse_loss(out, y)
    loss.backward()
    return loss, out


def named(model: Any, x: Any, y: Any) -> Any:
    out = model(x)
    loss = F.mse_loss(out, y)
    loss.backward()
    return {"loss": loss, "out": out, "parts": [out * 2, out.mean()], "none": None}


def two_losses(model: Any, x: Any, y: Any) -> Any:
    out = model(x)
    first, second = F.mse_loss(out, y), out.abs().mean()
    loss = first + 0.1 * second
    loss.backward()
    return loss, first, second


def loss_twice(model: Any, x: Any, y: Any) -> Any:
    loss = squares(model, x, y)
    return loss, loss


def smoothed(model: Any, x: Any, y: Any) -> Any:
    logs = F.log_softmax(model(x), dim=-1)
    loss = -(logs * F.softmax(y, dim=-1)).sum(dim=-1).mean()
    loss.backward()
    return loss


def apart(model: Any, x: Any, y: Any) -> Any:
    loss = F.l1_loss(model(x), y)
    loss.backward()
    return loss


def logistic(model: Any, x: Any, y: Any) -> Any:
    loss = nn.BCEWithLogitsLoss()(model(x), (y > 0).float())
    loss.backward()
    return loss


def keywords(rng: np.random.Generator) -> Batch:
    (x, y), _ = rows(rng)
    return (x,), {"y": y}


def keywords_only(rng: np.random.Generator) -> Batch:
    (x, y), _ = rows(rng)
    return (), {"y": y, "x": x}


def by_keywords(model: Any, *, x: Any, y: Any) -> Any:
    return squares(model, x, y)


def in_dict(rng: np.random.Generator) -> Batch:
    (x, y), _ = rows(rng)
    return ({"x": x, "y": y},), {}


def of_dict(model: Any, batch: Any) -> Any:
    return squares(model, batch["x"], batch["y"])


def in_list(rng: np.random.Generator) -> Batch:
    (x, y), _ = rows(rng)
    return ([x, y],), {}


def of_list(model: Any, batch: Any) -> Any:
    return squares(model, batch[0], batch[1])


def scaled(scaler: Any) -> Callable[[nn.Graph], Any]:
    return lambda graph: graph.set_grad_scaler(scaler)


def scaled_halves(graph: nn.Graph) -> None:
    graph.config.enable_amp(True)
    graph.set_grad_scaler(flow.amp.GradScaler(init_scale=1024.0, growth_interval=3))


def accumulated_and_scaled(graph: nn.Graph) -> None:
    graph.config.set_gradient_accumulation_steps(2)
    graph.set_grad_scaler(flow.amp.GradScaler(init_scale=1024.0, growth_interval=3))


def sharded(graph: nn.Graph) -> None:
    graph.config.enable_zero(True)


def checkpointed(graph: nn.Graph) -> None:
    graph.model[0].to(nn.graph.GraphModule).activation_checkpointing = True


schedules = flow.optim.lr_scheduler
# Models, optimizers, schedules, losses, outputs and inputs are independent of each other: a case has one
# of each. Their order tells under which plan each is trained (test_training_scripts.py).
CASES: dict[str, Case] = {
    "scalar and unread, sgd, cosine, a dict": Case(
        model=Gated,
        optimizer=read_ones,
        schedule=lambda o: schedules.CosineAnnealingLR(o, 10),
        batch=in_dict,
        build=of_dict,
    ),
    "nesterov, cosine decay, several outputs": Case(
        optimizer=by(lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
        schedule=lambda o: schedules.CosineDecayLR(o, 10, 0.1),
        build=several,
    ),
    "weight decay, steps, named outputs": Case(
        optimizer=by(lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
        schedule=lambda o: schedules.StepLR(o, 3, 0.5),
        build=named,
    ),
    "adam, milestones, two losses": Case(
        optimizer=by(lambda p: flow.optim.Adam(p, lr=0.01)),
        schedule=lambda o: schedules.MultiStepLR(o, [2, 5], 0.5),
        build=two_losses,
    ),
    "checkpointing, adam without correction, exponential, a loss twice": Case(
        optimizer=by(lambda p: flow.optim.Adam(p, lr=0.01, do_bias_correction=False)),
        schedule=lambda o: schedules.ExponentialLR(o, 0.9),
        build=loss_twice,
        set_up=checkpointed,
    ),
    "adamw, polynomial, keywords": Case(
        optimizer=by(lambda p: flow.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        schedule=lambda o: schedules.PolynomialLR(o, 10, 0.001),
        batch=keywords,
    ),
    "ZeRO of the user's, amsgrad, linear, only keywords": Case(
        optimizer=by(lambda p: flow.optim.Adam(p, lr=0.01, amsgrad=True)),
        schedule=lambda o: schedules.LinearLR(o, 0.3, 1.0, 5),
        batch=keywords_only,
        build=by_keywords,
        set_up=sharded,
    ),
    "frozen, adam, warm-up, a list": Case(
        model=frozen,
        optimizer=lambda m: flow.optim.Adam(
            [p for p in m.parameters() if p.requires_grad], lr=0.01
        ),
        schedule=lambda o: schedules.WarmUpLR(
            schedules.CosineAnnealingLR(o, 10), warmup_factor=0.5, warmup_iters=4
        ),
        batch=in_list,
        build=of_list,
    ),
    "lamb": Case(optimizer=by(lambda p: flow.optim.LAMB(p, lr=0.01))),
    "adagrad": Case(optimizer=by(lambda p: flow.optim.Adagrad(p, lr=0.05))),
    "adadelta, soft targets": Case(
        optimizer=by(lambda p: flow.optim.Adadelta(p, lr=1.0)), build=smoothed
    ),
    "convolutions, rmsprop": Case(
        model=convolutions,
        optimizer=by(lambda p: flow.optim.RMSprop(p, lr=0.01)),
        batch=images,
        build=entropy,
    ),
    "centered rmsprop, logistic": Case(
        optimizer=by(lambda p: flow.optim.RMSprop(p, lr=0.01, centered=True)), build=logistic
    ),
    "tied, two groups": Case(model=Tied, optimizer=two_groups, batch=tokens, build=entropy),
    # gradients
    "clipped by the largest": Case(optimizer=clipped(float("inf"), 0.1), eager=True),
    "two clipped groups, absolute": Case(optimizer=two_clipped_groups, build=apart),
    "static scaler": Case(set_up=scaled(flow.amp.StaticGradScaler(128.0))),
    "scaler and clipping": Case(
        optimizer=clipped(2.0), set_up=scaled(flow.amp.StaticGradScaler(128.0))
    ),
    "accumulated and scaled": Case(set_up=accumulated_and_scaled),
    # models
    "attention": Case(model=Attention, batch=tokens, build=entropy),
    "dropout": Case(model=with_dropout),
    "BatchNorm": Case(model=with_batch_norm, batch=images, build=entropy),
    "AMP with a scaler": Case(set_up=scaled_halves),
    "constants": Case(model=Indexing),
}


def graph_of(case: Case) -> nn.Graph:
    """Return the training graph of a case, over a new model whose weights are always the same."""
    flow.manual_seed(7)
    model, rng = case.model(), np.random.default_rng(1)
    for parameter in model.parameters():
        values = rng.normal(0.0, 0.2, tuple(parameter.shape)).astype(np.float32)
        parameter.data.copy_(flow.tensor(values))
    optimizer = case.optimizer(model)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            if case.schedule is None:
                self.add_optimizer(optimizer)
            else:
                self.add_optimizer(optimizer, lr_sch=case.schedule(optimizer))
            case.set_up(self)

        def build(self, *args: Any, **kwargs: Any) -> Any:
            return case.build(self.model, *args, **kwargs)

    return Train()


def leaves(returned: Any) -> list[Any]:
    """Return the tensors of what a graph returns, as lists of numbers; on all ranks."""
    if isinstance(returned, flow.Tensor):
        if returned.is_global:
            everywhere = flow.placement("cpu", list(range(flow.env.get_world_size())))
            returned = returned.to_global(placement=everywhere, sbp=flow.sbp.broadcast).to_local()
        return [returned.numpy().ravel().tolist()]
    if isinstance(returned, dict):
        returned = list(returned.values())
    if isinstance(returned, list | tuple):
        return [leaf for each in returned for leaf in leaves(each)]
    return []
