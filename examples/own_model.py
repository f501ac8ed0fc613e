"""A model of your own: planned, explained, and trained on four ranks, with the numbers of one device.

python -m autoddl run --nproc-per-node 4 examples/own_model.py
"""

import oneflow as flow

import autoddl


class Train(flow.nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=1e-3))

    def build(self, x, y):
        loss = flow.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def build():
    linear = flow.nn.Linear
    model = flow.nn.Sequential(linear(1024, 4096), flow.nn.GELU(), linear(4096, 1024))
    return Train(model), (flow.randn(64, 1024), flow.randn(64, 1024))


if __name__ == "__main__":
    graph, (x, y) = build()
    plan = autoddl.optimize(graph, x, y, mesh="4", profile="cpu-loopback")
    step = plan.apply(graph)  # on every rank, before the first step
    losses = [float(step(x, y).numpy()) for _ in range(3)]
    if flow.env.get_rank() == 0:
        print(plan, plan.explain(), f"losses: {losses}", sep="\n\n")
