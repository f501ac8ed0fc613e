"""Train, validate and save; started again, go on from the checkpoint, on as many ranks or others.

python -m autoddl run --nproc-per-node 4 examples/checkpoint.py
python -m autoddl run --nproc-per-node 2 examples/checkpoint.py
"""

from pathlib import Path

import oneflow as flow

import autoddl

FOLDER = "checkpoint"


class Validate(flow.nn.Graph):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def build(self, x, y):
        return flow.nn.functional.mse_loss(self.model(x), y)


class Train(Validate):
    def __init__(self, model):
        super().__init__(model)
        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=1e-2))

    def build(self, x, y):
        loss = super().build(x, y)
        loss.backward()
        return loss


flow.manual_seed(0)  # the same data and the same first weights on every rank
x, held_out = flow.randn(512, 16), flow.randn(512, 16)
model = flow.nn.Sequential(flow.nn.Linear(16, 64), flow.nn.ReLU(), flow.nn.Linear(64, 4))
train, validate = Train(model), Validate(model)
inputs = x, x[:, :4].abs()

if Path(FOLDER, "index.json").exists():
    step = autoddl.resume(FOLDER, train, *inputs)  # planned again if other ranks run
else:
    step = autoddl.optimize(train, *inputs).apply(train)
for _ in range(20):
    loss = step(*inputs)
model.eval()
found = step.evaluate(validate, held_out, held_out[:, :4].abs())
model.train()
step.save(FOLDER)  # on every rank
trained, validated = float(loss.numpy()), float(found.numpy())
if flow.env.get_rank() == 0:
    print(f"training loss {trained:.4f}, validation loss {validated:.4f}, saved")
