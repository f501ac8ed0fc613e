"""Hand-made Programs, as the capture of the engine makes them, for tests that need no engine.

`mlp` and `transformer` return whole training steps: forward, backward (with the gradients of every
parameter) and updates. Op types, operand names, attributes and modules are the engine's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod, sqrt
from typing import Any

from autoddl.sbp.program import Op, Parameter, Program, Tensor

Shape = tuple[int, ...]

STATES = {"sgd": (), "momentum": ("momentum",), "adam": ("m", "v")}
_RATE = "System-Train-LearningRate-Scheduler/out"
_CORRECTIONS = ("bias_correction1", "bias_correction2")


class Builder:
    """Emit ops one by one; `backward` then walks the tape, `program` adds the updates."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.parameters: list[str] = []
        self.scope, self.phase = "", "forward"
        self.tape: list[tuple[str, str, Callable[[str], None]]] = []
        self.gradients: dict[str, list[str]] = defaultdict(list)

    def shape(self, name: str) -> Shape:
        return self.tensors[name].shape

    def input(self, shape: Shape, dtype: str = "float32") -> str:
        name = f"input.0.{len(self.inputs)}"
        self.inputs.append(name)
        return self._tensor(name, shape, dtype, "input")

    def parameter(self, leaf: str, shape: Shape) -> str:
        name = f"{self.scope}.{leaf}"
        self.parameters.append(name)
        return self._tensor(name, shape, "float32", "parameter")

    def _tensor(self, name: str, shape: Shape, dtype: str, role: str) -> str:
        self.tensors[name] = Tensor(name, tuple(shape), dtype, role)
        return name

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        outer, self.scope = self.scope, f"{self.scope}.{name}" if self.scope else name
        yield
        self.scope = outer

    def op(
        self, type_: str, operands: str, inputs: Sequence[str], *shapes: Shape,
        dtype: str = "float32", **attrs: Any,
    ) -> Any:  # fmt: skip
        """Add an op: operands as "a_0 b_0 -> out_0", one shape per output; return the outputs."""
        left, _, right = operands.partition("->")
        name = f"{self.scope}-{type_}-{len(self.ops)}" if self.scope else f"{type_}-{len(self.ops)}"
        role = "activation" if self.phase == "forward" else "gradient"
        outputs = [(o, f"{name}/{o}") for o in right.split()]
        for (_, tensor), shape in zip(outputs, shapes, strict=True):
            self._tensor(tensor, shape, dtype, role)
        pairs = sorted(zip(left.split(), inputs, strict=True))
        self.ops.append(
            Op(
                name,
                type_,
                tuple(pairs),
                tuple(outputs),
                tuple(sorted(attrs.items())),
                self.phase,
                self.scope,
            )
        )
        made = [tensor for _, tensor in outputs]
        return made[0] if len(made) == 1 else made

    def back(self, output: str, step: Callable[[str], None]) -> str:
        """Say what to do with the gradient of `output`; return `output`."""
        self.tape.append((output, self.scope, step))
        return output

    def give(self, tensor: str, gradient: Callable[[], str]) -> None:
        """Add a contribution to the gradient of `tensor`, unless nobody wants it."""
        if tensor not in self.inputs:
            self.gradients[tensor].append(gradient())

    def gradient(self, tensor: str) -> str:
        parts = self.gradients[tensor]
        if len(parts) > 1:
            names = " ".join(f"in_{i}" for i in range(len(parts)))
            self.gradients[tensor] = [
                self.op("add_n", f"{names} -> out_0", parts, self.shape(tensor))
            ]
        return self.gradients[tensor][0]

    def backward(self) -> None:
        self.phase = "backward"
        for output, scope, step in reversed(self.tape):
            gradient = self.gradient(output)
            self.scope = scope
            step(gradient)
        for name in self.parameters:
            self.gradient(name)

    def program(self, loss: str, optimizer: str = "adam") -> Program:
        self.backward()
        self.phase = "optimizer"
        held = [self._update(name, optimizer) for name in self.parameters]
        self.tensors[loss] = Tensor(loss, self.shape(loss), "float32", "loss")
        return Program(
            ops=tuple(self.ops),
            tensors=tuple(self.tensors.values()),
            inputs=tuple(self.inputs),
            outputs=(loss,),
            parameters=tuple(held),
            loss=loss,
            device=self.device,
        )

    def _update(self, name: str, optimizer: str) -> Parameter:
        shape, states = self.shape(name), STATES[optimizer]
        held = [self._tensor(f"{name}-{s}", shape, "float32", "state") for s in states]
        gradient = self.gradient(name)
        operands = {"model_0": name, "model_diff_0": gradient, "learning_rate_0": _RATE}
        operands |= {f"{s}_0": tensor for s, tensor in zip(states, held, strict=True)}
        if optimizer == "adam":
            operands |= {f"{c}_0": f"System-Train-{c}/out" for c in _CORRECTIONS}
        for tensor in operands.values():
            if tensor not in self.tensors:
                self._tensor(tensor, (1,), "float32", "system")
        attrs = (("beta", 0.9), ("learning_rate_scale", 1.0), ("learning_rate_val", 0.0))
        update = Op(
            f"{name}_optimizer", f"{optimizer}_update", tuple(sorted(operands.items())), (), attrs,
            "optimizer", name.rpartition(".")[0],
        )  # fmt: skip
        self.ops.append(update)
        return Parameter(name, gradient, tuple(held), update.name)


def scalar_of(value: float) -> Mapping[str, Any]:
    """Return the attributes of a scalar op."""
    return {
        "float_operand": value,
        "int_operand": 0,
        "has_float_operand": True,
        "has_int_operand": False,
    }


def scaled(g: Builder, x: str, factor: float) -> str:
    return g.op("scalar_mul", "in_0 -> out_0", [x], g.shape(x), **scalar_of(factor))


def sum_like(g: Builder, x: str, like: str) -> str:
    """Sum `x` over the dims in which `like` is repeated."""
    large, small = g.shape(x), g.shape(like)
    offset = len(large) - len(small)
    axis = tuple(i for i, n in enumerate(large) if i < offset or small[i - offset] != n)
    return g.op("reduce_sum_like", "x_0 like_0 -> y_0", [x, like], small, axis=axis)


def linear(g: Builder, x: str, features: int, *, bias: bool = True) -> str:
    """Apply a linear layer whose weight is (features, inputs)."""
    shape = g.shape(x)
    weight = g.parameter("weight", (features, shape[-1]))
    flat = len(shape) == 2
    kind = "matmul" if flat else "broadcast_matmul"

    def product(a: str, b: str, size: Shape, ta: bool = False, tb: bool = False) -> str:
        return g.op(
            kind, "a_0 b_0 -> out_0", [a, b], size, alpha=1.0, transpose_a=ta, transpose_b=tb
        )

    def step(dy: str) -> None:
        g.give(x, lambda: product(dy, weight, shape))
        if flat:
            g.give(weight, lambda: product(dy, x, g.shape(weight), ta=True))
        else:
            g.give(
                weight,
                lambda: g.op(
                    "broadcast_matmul_grad_b",
                    "a_0 b_0 -> out_0",
                    [dy, x],
                    g.shape(weight),
                    alpha=1.0,
                ),
            )

    y = g.back(product(x, weight, (*shape[:-1], features), tb=True), step)
    return add(g, y, g.parameter("bias", (features,))) if bias else y


def add(g: Builder, x: str, y: str) -> str:
    """Add `y`, which is broadcast to the shape of `x`."""
    z = g.op("broadcast_add", "x_0 y_0 -> z_0", [x, y], g.shape(x))

    def step(dz: str) -> None:
        g.give(y, lambda: sum_like(g, dz, y))
        g.give(x, lambda: dz)

    return g.back(z, step)


def residual(g: Builder, x: str, y: str) -> str:
    z = g.op("add_n", "in_0 in_1 -> out_0", [x, y], g.shape(x))

    def step(dz: str) -> None:
        g.give(x, lambda: dz)
        g.give(y, lambda: dz)

    return g.back(z, step)


def activation(g: Builder, x: str, kind: str) -> str:
    shape = g.shape(x)
    if kind == "gelu":
        y = g.op("gelu", "in_0 -> out_0", [x], shape)
        return g.back(
            y, lambda dy: g.give(x, lambda: g.op("gelu_grad", "dy_0 x_0 -> dx_0", [dy, x], shape))
        )
    y = g.op(kind, "x_0 -> y_0", [x], shape)
    return g.back(
        y, lambda dy: g.give(x, lambda: g.op(f"{kind}_grad", "dy_0 y_0 -> dx_0", [dy, y], shape))
    )


def mse(g: Builder, x: str, target: str) -> str:
    """Return the mean squared error, in the six ops of the engine's MSELoss."""
    shape, count = g.shape(x), prod(g.shape(x))
    difference = g.op("broadcast_sub", "x_0 y_0 -> z_0", [x, target], shape)
    square = g.op("square", "x_0 -> y_0", [difference], shape)
    total = g.op(
        "reduce_sum", "input_tensor_0 -> output_tensor_0", [square], (),
        axis=tuple(range(len(shape))), keepdims=False,
    )  # fmt: skip
    loss = scaled(g, total, 1 / count)
    axes = tuple(range(len(shape)))

    def step(one: str) -> None:
        share = scaled(g, one, 1 / count)
        spread = g.op(
            "broadcast_like", "x_0 like_0 -> y_0", [share, square], shape, broadcast_axes=axes
        )
        g.give(x, lambda: g.op("square_grad", "dy_0 x_0 -> dx_0", [spread, difference], shape))

    g.back(loss, step)
    start_backward(g, loss)
    return loss


def start_backward(g: Builder, loss: str) -> None:
    """Let the walk back begin with ones_like(loss)."""

    def one() -> str:
        return g.op("ones_like", "like_0 -> out_0", [loss], g.shape(loss))

    *before, (output, scope, step) = g.tape
    g.tape = [*before, (output, scope, lambda _: step(one()))]
    g.gradients[output] = [output]  # never read: the step above makes its own


def mlp(
    batch: int = 8,
    sizes: Sequence[int] = (16, 32, 8),
    *,
    optimizer: str = "adam",
    act: str = "gelu",
    bias: bool = True,
    device: str = "cpu",
) -> Program:
    """Return a training step of a multilayer perceptron with mean squared error.

    `sizes` are the features of the input and after each layer; `act=""` leaves activations out.
    """
    g = Builder(device)
    x, target = g.input((batch, sizes[0])), g.input((batch, sizes[-1]))
    with g.module("model"):
        for number, features in enumerate(sizes[1:], 1):
            with g.module(f"fc{number}"):
                x = linear(g, x, features, bias=bias)
            if act and number < len(sizes) - 1:
                with g.module(f"act{number}"):
                    x = activation(g, x, act)
    return g.program(mse(g, x, target), optimizer)


def layer_norm(g: Builder, x: str) -> str:
    """Normalise the last dim, op by op as the engine does on CPUs."""
    shape, axis = g.shape(x), len(g.shape(x)) - 1
    row, n = (*shape[:-1], 1), shape[-1]

    def mean() -> str:
        total = g.op(
            "reduce_sum", "input_tensor_0 -> output_tensor_0", [x], row, axis=(axis,), keepdims=True
        )
        return scaled(g, total, 1 / n)

    def mul(a: str, b: str) -> str:
        return g.op("broadcast_mul", "x_0 y_0 -> z_0", [a, b], shape)

    def minus(a: str, b: str) -> str:
        return g.op("broadcast_sub", "x_0 y_0 -> z_0", [a, b], shape)

    weight, bias = g.parameter("weight", (n,)), g.parameter("bias", (n,))
    middle = mean()
    var = g.op("var", "input_0 -> output_0", [x], row, dim=(axis,), unbiased=False, keepdim=True)
    above = g.op("scalar_add", "in_0 -> out_0", [var], row, **scalar_of(1e-5))
    centred = minus(x, middle)
    root = g.op("rsqrt", "x_0 -> y_0", [above], row)
    normal = mul(centred, root)

    def step(dy: str) -> None:
        inner = mul(dy, weight)
        outer = mul(dy, normal)
        g.give(weight, lambda: sum_like(g, outer, weight))
        left = mul(inner, root)
        d_root = sum_like(g, mul(inner, centred), root)
        d_mean = sum_like(g, scaled(g, left, -1.0), middle)
        d_var = g.op("rsqrt_grad", "dy_0 x_0 -> dx_0", [d_root, above], row)
        share = scaled(g, d_mean, 1 / n)
        g.give(
            x,
            lambda: g.op(
                "broadcast_like", "x_0 like_0 -> y_0", [share, x], shape, broadcast_axes=(axis,)
            ),
        )
        g.give(x, lambda: left)
        slope = scaled(g, minus(x, mean()), 2 / n)
        g.give(x, lambda: mul(d_var, slope))

    return add(g, g.back(mul(normal, weight), step), bias)


def reshape(g: Builder, x: str, shape: Shape, dtype: str = "float32") -> str:
    def turn(tensor: str, to: Shape) -> str:
        return g.op("reshape", "in_0 -> out_0", [tensor], to, dtype=dtype, shape=to)

    old, y = g.shape(x), turn(x, shape)
    if dtype != "float32":
        return y
    return g.back(y, lambda dy: g.give(x, lambda: turn(dy, old)))


def transpose(g: Builder, x: str, perm: Shape) -> str:
    def turn(tensor: str, order: Shape) -> str:
        to = tuple(g.shape(tensor)[i] for i in order)
        return g.op("transpose", "input_0 -> output_0", [tensor], to, perm=order)

    inverse = tuple(perm.index(i) for i in range(len(perm)))
    return g.back(turn(x, perm), lambda dy: g.give(x, lambda: turn(dy, inverse)))


def part(g: Builder, x: str, start: int, stop: int) -> str:
    """Take a slice of the last dim."""
    large = g.shape(x)
    small = (*large[:-1], stop - start)
    bounds = {
        "start": (*(0 for _ in large[:-1]), start),
        "stop": (*large[:-1], stop),
        "step": (1,) * len(large),
    }
    y = g.op("slice", "x_0 -> y_0", [x], small, **bounds)

    def step(dy: str) -> None:
        g.give(
            x, lambda: g.op("slice_grad", "dy_0 -> dx_0", [dy], large, like_shape=large, **bounds)
        )

    return g.back(y, step)


def batch_matmul(g: Builder, a: str, b: str) -> str:
    def product(left: str, right: str, size: Shape, ta: bool = False, tb: bool = False) -> str:
        return g.op(
            "batch_matmul", "a_0 b_0 -> out_0", [left, right], size,
            alpha=1.0, transpose_a=ta, transpose_b=tb,
        )  # fmt: skip

    def step(dy: str) -> None:
        g.give(a, lambda: product(dy, b, g.shape(a), tb=True))
        g.give(b, lambda: product(a, dy, g.shape(b), ta=True))

    return g.back(product(a, b, (*g.shape(a)[:-1], g.shape(b)[-1])), step)


def attention(g: Builder, x: str, heads: int, *, three_first: bool = False) -> str:
    """Attend; what the projection makes is (heads, 3, depth), or (3, heads, depth)."""
    batch, length, width = g.shape(x)
    depth = width // heads
    with g.module("qkv"):
        y = linear(g, x, 3 * width)
    if three_first:
        thirds = [part(g, y, i * width, (i + 1) * width) for i in range(3)]
        query, key, value = (
            transpose(g, reshape(g, third, (batch, length, heads, depth)), (0, 2, 1, 3))
            for third in thirds
        )
    else:
        y = transpose(g, reshape(g, y, (batch, length, heads, 3 * depth)), (0, 2, 1, 3))
        query, key, value = (part(g, y, i * depth, (i + 1) * depth) for i in range(3))
    scores = batch_matmul(g, query, transpose(g, key, (0, 1, 3, 2)))
    scores_scaled = scaled(g, scores, 1 / sqrt(depth))
    g.back(scores_scaled, lambda d: g.give(scores, lambda: scaled(g, d, 1 / sqrt(depth))))
    shape = g.shape(scores)
    weights = g.op("softmax", "in_0 -> out_0", [scores_scaled], shape)
    g.back(
        weights,
        lambda d: g.give(
            scores_scaled, lambda: g.op("softmax_grad", "dy_0 y_0 -> dx_0", [d, weights], shape)
        ),
    )
    mixed = transpose(g, batch_matmul(g, weights, value), (0, 2, 1, 3))
    with g.module("proj"):
        return linear(g, reshape(g, mixed, (batch, length, width)), width)


def cross_entropy(g: Builder, logits: str, target: str) -> str:
    *leading, classes = g.shape(logits)
    rows = (prod(leading),)
    x, ids = reshape(g, logits, (*rows, classes)), reshape(g, target, rows, "int64")
    prob = g.op("log_softmax", "in_0 -> prob_0", [x], (*rows, classes))
    ignore = {"ignore_index": -100}
    weight, each = g.op(
        "nll", "input_0 target_0 -> out_weight_0 output_0", [prob, ids], rows, rows, **ignore
    )

    def total(tensor: str) -> str:
        return g.op(
            "reduce_sum",
            "input_tensor_0 -> output_tensor_0",
            [tensor],
            (),
            axis=(0,),
            keepdims=False,
        )

    numerator, denominator = total(each), total(weight)
    loss = g.op("broadcast_div", "x_0 y_0 -> z_0", [numerator, denominator], ())

    def step(one: str) -> None:
        share = g.op("broadcast_div", "x_0 y_0 -> z_0", [one, denominator], ())
        unread = g.op("broadcast_div_grad", "dz_0 y_0 z_0 -> dy_0", [one, denominator, loss], ())
        for tensor, like in ((share, each), (unread, weight)):
            spread = g.op(
                "broadcast_like", "x_0 like_0 -> y_0", [tensor, like], rows, broadcast_axes=(0,)
            )
            if like == each:
                d_prob = g.op(
                    "nll_grad", "input_0 target_0 out_grad_0 -> in_grad_0", [prob, ids, spread],
                    (*rows, classes), **ignore,
                )  # fmt: skip
        g.give(
            x,
            lambda: g.op("log_softmax_grad", "dy_0 prob_0 -> dx_0", [d_prob, prob], g.shape(prob)),
        )

    g.back(loss, step)
    start_backward(g, loss)
    return loss


def transformer(
    layers: int = 1,
    batch: int = 8,
    length: int = 8,
    width: int = 32,
    heads: int = 4,
    vocabulary: int = 64,
    *,
    optimizer: str = "adam",
    three_first: bool = False,
) -> Program:
    """Return a training step of a pre-norm decoder without mask and dropout (a small GPT)."""
    g = Builder()
    ids, target = g.input((batch, length), "int64"), g.input((batch, length), "int64")
    with g.module("model"):
        with g.module("token"):
            table = g.parameter("weight", (vocabulary, width))
            x = g.op(
                "gather", "in_0 indices_0 -> out_0", [table, ids], (batch, length, width), axis=0
            )
            g.back(
                x,
                lambda d: g.give(
                    table,
                    lambda: g.op(
                        "unsorted_segment_sum_like", "data_0 segment_ids_0 like_0 -> out_0",
                        [d, ids, table], g.shape(table), axis=0,
                    ),
                ),
            )  # fmt: skip
        x = add(g, x, g.parameter("position", (length, width)))
        for number in range(layers):
            with g.module(f"blocks.{number}"):
                x = block(g, x, heads, three_first=three_first)
        with g.module("norm"):
            x = layer_norm(g, x)
        with g.module("head"):
            x = linear(g, x, vocabulary, bias=False)
    return g.program(cross_entropy(g, x, target), optimizer)


def block(g: Builder, x: str, heads: int, *, three_first: bool = False) -> str:
    width = g.shape(x)[-1]
    with g.module("ln1"):
        y = layer_norm(g, x)
    with g.module("attention"):
        y = attention(g, y, heads, three_first=three_first)
    x = residual(g, x, y)
    with g.module("ln2"):
        y = layer_norm(g, x)
    with g.module("fc1"):
        y = linear(g, y, 4 * width)
    with g.module("act"):
        y = activation(g, y, "gelu")
    with g.module("fc2"):
        y = linear(g, y, width)
    return residual(g, x, y)


def tied() -> Program:
    """Return two products with one weight, at both ends, each of which reads the input."""
    g = Builder()
    x, target = g.input((8, 16)), g.input((8, 16))
    with g.module("model"):
        weight = g.parameter("weight", (16, 16))

        def product(a: str, b: str, ta: bool = False, tb: bool = False) -> str:
            left, right = g.shape(a)[int(ta)], g.shape(b)[int(not tb)]
            return g.op(
                "matmul", "a_0 b_0 -> out_0", [a, b], (left, right),
                alpha=1.0, transpose_a=ta, transpose_b=tb,
            )  # fmt: skip

        def layer(a: str) -> str:
            def step(dy: str) -> None:
                g.give(a, lambda: product(dy, weight, tb=True))
                g.give(weight, lambda: product(a, dy, ta=True))

            return g.back(product(a, weight), step)

        y = layer(x)
        with g.module("inner"):
            y = residual(g, y, linear(g, y, 16))
        y = layer(residual(g, y, x))
    return g.program(mse(g, y, target))
