#!/usr/bin/env bash
# OneFlow 0.9.0: an autograd.Function whose forward returns its input takes a parameter out of training, silently.
#
# Functions that do something in the backward pass alone (add up gradients over devices, scale or clip them) return
# their input as it is. In PyTorch that works: the result is another tensor than the parameter. Seen in OneFlow: the
# result is the parameter itself; its .grad stays None, backward() says nothing, and an optimizer leaves it as it
# was. Of a tensor that was computed gradients are right, and so are they of a parameter if forward returns a clone.
#
# Needs CPython 3.10 (PYTHON=/path/to/python3.10). Exits 0 while OneFlow does what is described.

set -euo pipefail
python=${PYTHON:-python3.10}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-input --disable-pip-version-check \
    oneflow==0.9.0 nvidia-cudnn-cu11==8.5.0.96 nvidia-cublas-cu11==11.10.3.66 'numpy<2' 'protobuf<4'
cd "$folder"
cat >train.py <<'PYTHON'
import oneflow as flow


def function_of(forward):
    class Doubled(flow.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    return Doubled.apply


def trained(forward, leaf=True):
    """Return a parameter after a step of which its gradient is 2, 4, 6, and whether it has a gradient."""
    weight = flow.nn.Parameter(flow.zeros(3))
    read = function_of(forward)(weight if leaf else weight + 0)
    (read * flow.tensor([1.0, 2.0, 3.0])).sum().backward()
    flow.optim.SGD([weight], lr=1.0).step()
    return weight.numpy().tolist(), weight.grad is not None


same, cloned = trained(lambda x: x), trained(lambda x: x.clone())
inside = trained(lambda x: x, leaf=False)
print("forward returns its input:       ", *same)
print("forward returns a clone:         ", *cloned)
print("its input, which is no parameter:", *inside)
right = [-2.0, -4.0, -6.0], True
raise SystemExit(0 if (cloned, inside) == (right, right) and same == ([0.0] * 3, False) else 1)
PYTHON
printf 'oneflow 0.9.0; expected: all three train, [-2.0, -4.0, -6.0], with a gradient\n'
"$folder/venv/bin/python" train.py 2>/dev/null || {
    echo "OneFlow does something else now"
    exit 1
}
