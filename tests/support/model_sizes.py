"""How large models of `experiments/models` are, without memory for their parameters."""

from __future__ import annotations

from importlib import import_module
from math import prod
from typing import Any


def shapes(model: str, **sizes: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters of a file's model with these sizes, by name."""
    import oneflow as flow

    import autoddl

    with autoddl.abstract_parameters():
        graph, _ = import_module(f"experiments.models.{model}").build(**sizes)
    module = graph.model.to(flow.nn.Module)
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


def parameters(model: str, **sizes: Any) -> int:
    """Return how many numbers a model learns."""
    return sum(prod(shape) for shape in shapes(model, **sizes).values())
