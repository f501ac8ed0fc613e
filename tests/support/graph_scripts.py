"""A training script of a toy model, whole and in parts."""

from __future__ import annotations

GRAPH = """
import oneflow as flow
import autoddl

class Train(flow.nn.Graph):
    def __init__(self, width=256):
        super().__init__()
        layers = flow.nn.Linear(64, width), flow.nn.GELU(), flow.nn.Linear(width, 64)
        self.model = flow.nn.Sequential(*layers)
        self.add_optimizer(flow.optim.Adam(self.model.parameters(), lr=1e-3))

    def build(self, x, y):
        loss = flow.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss
"""
BUILD = """
def build(width=256):
    return Train(width), (flow.randn(32, 64), flow.randn(32, 64))
"""
MAIN = """
if __name__ == "__main__":
    graph, (x, y) = build()
    plan = autoddl.optimize(graph, x, y=y, mesh="2x2", search="Megatron")
    raise AssertionError("it went on")
"""
TRAIN = GRAPH + BUILD + MAIN
