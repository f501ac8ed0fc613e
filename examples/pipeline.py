"""A pipeline: two stages of two ranks each, through which a batch goes as four micro-batches.

python -m autoddl run --nproc-per-node 4 examples/pipeline.py

With `pipeline="auto"` the planner chooses the stages, the micro-batches and the mesh of each stage.
"""

import oneflow as flow

import autoddl


class Train(flow.nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

    def build(self, x, y):
        loss = flow.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


class Block(flow.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.act = flow.nn.Linear(width, width), flow.nn.GELU()

    def forward(self, x):
        return x + self.act(self.linear(x))


graph = Train(flow.nn.Sequential(*(Block(512) for _ in range(8))))
x, y = flow.randn(64, 512), flow.randn(64, 512)
plan = autoddl.optimize(graph, x, y, pipeline=2, micro_batches=4, mesh="2")
step = plan.apply(graph)
losses = [float(step(x, y).numpy()) for _ in range(3)]  # each the mean over the micro-batches
if flow.env.get_rank() == 0:
    print(plan, f"losses: {losses}", sep="\n\n")
    plan.trace("trace.json")  # when each stage does what; open it in https://ui.perfetto.dev
