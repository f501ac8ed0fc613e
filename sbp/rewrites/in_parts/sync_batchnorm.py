"""BatchNorm in training whose batch may be cut, with the statistics of the whole batch.

`normalization` makes its own statistics of what it sees, so its batch stays whole. Here they are made in
parts that may be cut, of which only sums over samples cross devices, two numbers per channel in each
direction. With N samples of H elements in each channel, M = N·H in all:

    m = sum(x) / H,  v = var(x)         over space, of each sample and channel
    mean = sum(m) / N                   over samples
    variance = sum(v + (m - mean)²) / N
    y = normalization(x, mean, variance)                         as in evaluation

of x = [[1, 3], [5, 7]] (one channel): m = (2, 6), v = (1, 1), mean 4, variance (1 + 4 + 1 + 4) / 2 = 5.
All of it is centred: no small variance is the difference of large squares. In the backward pass

    dgamma = sum(dy · n),  dbeta = sum(dy),    n = (x - mean) / sqrt(variance + epsilon)
    dx = gamma / sqrt(variance + epsilon) · (dy - dbeta/M - n · dgamma/M)

comes in two passes over the activation, each a `normalization` with vectors that the sums make. Running
statistics are updated by the engine's own step of gradient descent, with decay towards the new ones.

Source: Chan, Golub and LeVeque 1979 (updating formulae for computing sample variances); Ioffe and Szegedy
2015 (BatchNorm and its gradient).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.program.ops_and_tensors import UNREAD

PREFIX = "autoddl-batchnorm-"
"""What the names of the ops begin with that a program has only then."""
_FLOAT32, _FLOAT64 = 2, 3  # the engine's numbers
# In which type statistics are made of an activation: halves would lose their digits
_STATISTICS = {
    "float16": ("float32", _FLOAT32), "float32": ("float32", _FLOAT32), "float64": ("float64", _FLOAT64)
}  # fmt: skip


def synchronised(program: Program) -> Program:
    """Return a program with the statistics in parts; the same if it has none that can be."""
    found = {op.name for op in program.ops if _has_parts(program, op)}
    return _Parting(program, found).program() if found else program


def is_synchronised(program: Program) -> bool:
    """Tell whether a program is what `synchronised` has made of another one."""
    return any(op.name.startswith(PREFIX) for op in program.ops)


def _has_parts(program: Program, op: Op) -> bool:
    """Tell whether an op normalises channels, its second dim, with statistics of several samples."""
    if op.type != "normalization" or not op.attr["training"] or op.attr["axis"] != 1:
        return False
    inputs, made = dict(op.inputs), dict(op.outputs)
    x = program.tensor[inputs["x_0"]]
    statistics = {made["mean_0"], made["inv_variance_0"]}
    readers = [reader for name in statistics for reader, _ in program.consumers.get(name, ())]
    alike = all(reader.type == "normalization_grad" for reader in readers)
    return (
        "_add_to_output_0" not in inputs
        and x.dtype in _STATISTICS
        and x.shape[0] > 1
        and alike
        and statistics.isdisjoint(program.outputs)
    )


class _Parting:
    def __init__(self, before: Program, names: Iterable[str]) -> None:
        self.before, self.names = before, names
        self.ops: list[Op] = []
        self.made: dict[str, Tensor] = {}
        self.like: Op
        # by the statistics of a forward op what the backward pass reads in their place: the mean, the
        # variance and the inverse root
        self.parts: dict[str, tuple[str, str, str]] = {}
        self.renamed: dict[str, str] = {}

    def program(self) -> Program:
        """Return the program with all ops of these names in parts."""
        for op in self.before.ops:
            self.like = op
            inputs = dict(op.inputs)
            if op.name in self.names:
                self._forward(op, inputs)
            elif op.type == "normalization_grad" and inputs["mean_0"] in self.parts:
                self._backward(op, inputs)
            else:
                read = tuple((o, self.renamed.get(name, name)) for o, name in op.inputs)
                self.ops.append(replace(op, inputs=read))
        gone = set(self.parts)
        gone |= {
            dict(op.outputs)["inv_variance_0"] for op in self.before.ops if op.name in self.names
        }
        return replace(
            self.before,
            ops=tuple(self.ops),
            tensors=(*(t for t in self.before.tensors if t.name not in gone), *self.made.values()),
            outputs=tuple(self.renamed.get(name, name) for name in self.before.outputs),
        )

    def _forward(self, op: Op, inputs: Mapping[str, str]) -> None:
        x = self.before.tensor[inputs["x_0"]]
        samples, channels, *space = x.shape
        of_sample, of_channel = (samples, channels), (channels,)
        (kind, number), each, varied = _STATISTICS[x.dtype], x.name, None
        if kind != x.dtype:
            each = self._add("float", "cast", [each], x.shape, dtype=number, pin_memory=False)
        if space:
            dims, count = tuple(range(2, len(x.shape))), math.prod(space)
            total = self._add("sum", "reduce_sum", [each], of_sample, axis=dims, keepdims=False)
            varied = self._add(
                "var",
                "var",
                [each],
                of_sample,
                dim=dims,
                dtype=number,
                keepdim=False,
                unbiased=False,
            )
            each = self._times("each", total, 1 / count)
        mean = self._mean("mean", each, samples)
        off = self._add("off", "broadcast_sub", [each, mean], of_sample)
        square = self._add("square", "square", [off], of_sample)
        if varied is not None:
            square = self._add("spread", "add_n", [varied, square], of_sample)
        variance = self._mean("variance", square, samples)
        above = self._add(
            "above", "scalar_add", [variance], of_channel, **_operand(op.attr["epsilon"])
        )
        inverse = self._add("inverse", "rsqrt", [above], of_channel)
        self.parts[dict(op.outputs)["mean_0"]] = mean, variance, inverse
        count = math.prod((samples, *space))
        for old, new, factor in (
            ("moving_mean_0", mean, 1.0), ("moving_variance_0", variance, count / max(count - 1, 1))
        ):  # fmt: skip
            if old in inputs:
                self._follow(inputs[old], new, factor, 1 - op.attr["momentum"])
        self.ops.append(_normalising(op, op.name, inputs["x_0"], mean, variance))

    def _backward(self, op: Op, inputs: Mapping[str, str]) -> None:
        mean, variance, inverse = self.parts[inputs["mean_0"]]
        read = {**inputs, "mean_0": mean, "inv_variance_0": inverse}
        read |= {o: self.renamed.get(read[o], read[o]) for o in ("dy_0", "x_0")}
        made, x = dict(op.outputs), self.before.tensor[inputs["x_0"]]
        attrs = dict(op.attrs) | {UNREAD: ("dx_0",)}
        self.ops.append(replace(op, inputs=_sorted(read), attrs=_sorted(attrs)))
        if made["dx_0"] not in self.before.consumers:
            return
        of_channel, count = x.shape[1:2], x.elements // x.shape[1]
        slope = self._times("slope", made["gamma_diff_0"], -1 / count)
        middle = self._times("middle", made["beta_diff_0"], 1 / count)
        scale = self._add("scale", "broadcast_mul", [read["gamma_0"], inverse], of_channel)
        slope = self._add("tilt", "broadcast_mul", [scale, slope], of_channel)
        zero = self._times("zero", mean, 0.0)
        forward = replace(op, type="normalization", inputs=(("gamma_0", slope), ("beta_0", zero)))
        tilted = _normalising(forward, self._name("tilted"), read["x_0"], mean, variance)
        gamma = self._times("gamma", read["gamma_0"], 1.0)  # which may be updated before dx is made
        straight = replace(op, inputs=(("gamma_0", gamma), ("beta_0", zero)))
        dx = _normalising(straight, self._name("dx"), read["dy_0"], middle, variance)
        added = ("_add_to_output_0", f"{tilted.name}/y_0")
        self.ops += [tilted, replace(dx, inputs=_sorted(dict((*dx.inputs, added))))]
        dtype = self.before.tensor[made["dx_0"]].dtype
        for one in (tilted, dx):
            name = f"{one.name}/y_0"
            self.made[name] = Tensor(name, x.shape, dtype, "gradient")
        self.renamed[made["dx_0"]] = f"{dx.name}/y_0"

    def _mean(self, what: str, of: str, samples: int) -> str:
        """Return the mean over samples, whose sum is what crosses devices."""
        shape = self._shape(of)[1:]
        total = self._add(f"{what}-sum", "reduce_sum", [of], shape, axis=(0,), keepdims=False)
        return self._times(what, total, 1 / samples)

    def _times(self, what: str, of: str, factor: float) -> str:
        return self._add(what, "scalar_mul", [of], self._shape(of), **_operand(factor))

    def _shape(self, name: str) -> tuple[int, ...]:
        known = self.made.get(name) or self.before.tensor[name]
        return known.shape

    def _follow(self, running: str, new: str, factor: float, step: float) -> None:
        """Let a running statistic follow a new one: it is a parameter, and what is new its gradient."""
        attrs = {
            "l1": 0.0, "l2": 0.0, "learning_rate_scale": 1.0, "learning_rate_val": step,
            "scale": -factor, "weight_decay": 1.0,
        }  # fmt: skip
        inputs = (("model_0", running), ("model_diff_0", new))
        name = self._name(f"follow-{running.rpartition('.')[2]}")
        self.ops.append(
            Op(name, "sgd_update", inputs, (), _sorted(attrs), "forward", self.like.module)
        )

    def _name(self, what: str) -> str:
        return f"{PREFIX}{what}-{self.like.name}"

    def _add(
        self, what: str, kind: str, operands: Iterable[str], shape: tuple[int, ...], **attrs: Any
    ) -> str:
        """Add an op of one result, of which it returns the name."""
        like, name, (port, result) = self.like, self._name(what), _PORTS[kind]
        inputs = tuple(zip(port, operands, strict=False))
        first = self.before.tensor[dict(like.inputs)["x_0"]]
        role = "activation" if like.phase == "forward" else "gradient"
        made = f"{name}/{result}"
        self.made[made] = Tensor(made, shape, _STATISTICS[first.dtype][0], role)
        outputs = ((result, made),)
        self.ops.append(Op(name, kind, inputs, outputs, _sorted(attrs), like.phase, like.module))
        return made


_PORTS = {  # operands and result
    "reduce_sum": (("input_tensor_0",), "output_tensor_0"), "var": (("input_0",), "output_0"),
    "scalar_mul": (("in_0",), "out_0"), "scalar_add": (("in_0",), "out_0"),
    "broadcast_sub": (("x_0", "y_0"), "z_0"), "broadcast_mul": (("x_0", "y_0"), "z_0"),
    "cast": (("in_0",), "out_0"), "square": (("x_0",), "y_0"), "rsqrt": (("x_0",), "y_0"),
    "add_n": (("in_0", "in_1"), "out_0"),
}  # fmt: skip


def _sorted(items: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(items.items()))


def _operand(value: float) -> dict[str, Any]:
    return {
        "float_operand": value, "has_float_operand": True, "has_int_operand": False, "int_operand": 0
    }  # fmt: skip


def _normalising(op: Op, name: str, x: str, mean: str, variance: str) -> Op:
    """Return the op that normalises with these statistics, by gamma and beta of another one."""
    kept = {operand: tensor for operand, tensor in op.inputs if operand in ("beta_0", "gamma_0")}
    inputs = {**kept, "moving_mean_0": mean, "moving_variance_0": variance, "x_0": x}
    attrs = {"axis": 1, "momentum": 0.9, **op.attr, "training": False}
    return replace(
        op, name=name, type="normalization", inputs=_sorted(inputs),
        outputs=(("y_0", f"{name}/y_0"),), attrs=_sorted(attrs),
    )  # fmt: skip
