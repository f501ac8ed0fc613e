"""Rules of your own for op types that autoddl does not know: how they may be split over devices.

python examples/own_rule.py

Without a rule OneFlow's own list is taken for `mish`, in part; `strict=True` refuses such op types.
`capture(…).ops` shows the op types of a graph, with the names of their operands.
"""

import numpy as np
import oneflow as flow

import autoddl


class Train(flow.nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = flow.nn.Sequential(flow.nn.Linear(1024, 4096), flow.nn.Mish())
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x):
        loss = self.model(x).mean()
        loss.backward()
        return loss


def same_dims(op):  # elementwise: any dim may be cut, in both operands alike
    dims = " ".join(f"d{i}" for i in range(len(op.shape["in_0"])))
    return autoddl.index_map(f"in_0: {dims} -> out_0: {dims}")


def same_dims_back(op):  # and a sum over devices may pass through dy_0, in which the op is linear
    dims = " ".join(f"d{i}" for i in range(len(op.shape["x_0"])))
    return autoddl.index_map(f"dy_0: {dims}, x_0: {dims} -> dx_0: {dims}", linear=["dy_0"])


def mish(op):  # one device's part in NumPy
    x = op.inputs["in_0"]
    return {"out_0": x * np.tanh(np.logaddexp(0.0, x))}


def mish_back(op):
    x = op.inputs["x_0"]
    tanh = np.tanh(np.logaddexp(0.0, x))
    return {"dx_0": op.inputs["dy_0"] * (tanh + x * (1 - tanh**2) / (1 + np.exp(-x)))}


program = autoddl.capture(Train(), flow.randn(64, 1024))
try:
    autoddl.optimize(program, mesh="2x2", strict=True)
except autoddl.AutoDDLError as error:
    print(error)
autoddl.register_rule(
    autoddl.OpRule("mish", indices=same_dims, reference=mish),
    autoddl.OpRule("mish_grad", indices=same_dims_back, reference=mish_back),
)
print(autoddl.optimize(program, mesh="2x2", strict=True))
