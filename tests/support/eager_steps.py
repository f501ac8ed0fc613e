"""Steps of a model without its graph, whose compilation takes longer than all of them."""

from __future__ import annotations

from typing import Any


def eager_loss(graph: Any, inputs: tuple[Any, ...]) -> Any:
    """Return the loss of a graph of `experiments/models` on these inputs."""
    import oneflow as flow

    module = graph.model.to(flow.nn.Module)
    if hasattr(graph, "loss"):
        return graph.loss(module(*inputs[:-1]), inputs[-1])
    return module(*inputs)  # the model returns its loss


def eager_losses(
    graph: Any, inputs: tuple[Any, ...], steps: int, optimizer: str = "sgd"
) -> list[float]:
    """Return the loss of each of so many steps, which change the weights."""
    import oneflow as flow

    from experiments.models.training import OPTIMIZERS

    update = OPTIMIZERS[optimizer](graph.model.to(flow.nn.Module).parameters())
    losses = []
    for _ in range(steps):
        update.zero_grad()
        loss = eager_loss(graph, inputs)
        loss.backward()
        update.step()
        losses.append(float(loss.numpy()))
    return losses
