"""How ops are written: functions from an OpView to the text of one output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autoddl.codegen.expression import (
    Expr,
    binary,
    call,
    compared,
    literal,
    number,
    ordered,
    sbp_text,
)
from autoddl.codegen.template import OpView
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op

Write = Callable[[OpView], Expr]


def function(name: str, *operands: str) -> Write:
    return lambda op: call(name, *(op.args[operand] for operand in operands))


def signed(sign: str, left: str = "x_0", right: str = "y_0") -> Write:
    return lambda op: binary(op.args[left], sign, op.args[right])


def comparison(sign: str) -> Write:
    return lambda op: compared(op.args["x_0"], sign, op.args["y_0"])


def with_scalar(sign: str) -> Write:
    def write(op: OpView) -> Expr:
        inner = op.args["in_0"]
        if sign in ("+", "-", "*", "/"):
            found = mean(op) if sign == "*" else None
            return found or binary(inner, sign, op.scalar)
        return compared(inner, sign, op.scalar)

    return write


def mean(op: OpView) -> Expr | None:
    """Return x.mean(…) where a sum is multiplied by one over the number of its terms."""
    inner = op.args["in_0"]
    if inner.op is None or inner.op.type != "reduce_sum":
        return None
    shape = inner.shape["input_tensor_0"]
    terms = math.prod(shape[axis] for axis in inner.op.attr["axis"])
    if not math.isclose(float(op.scalar.text) * terms, 1.0, rel_tol=1e-6):
        return None
    return reduced(inner.args["input_tensor_0"], "mean", inner.op, len(shape))


def reduced(x: Expr, name: str, op: Op, ndim: int) -> Expr:
    axes, keep = op.attr["axis"], op.attr["keepdims"]
    if len(axes) == ndim and not keep:
        return Expr(f"{x.atom}.{name}()")
    dim = axes[0] if len(axes) == 1 else tuple(axes)
    options = f"dim={literal(dim)}" + (", keepdim=True" if keep else "")
    return Expr(f"{x.atom}.{name}({options})")


def total(op: OpView) -> Expr:
    return reduced(op.args["input_tensor_0"], "sum", op.op, len(op.shape["input_tensor_0"]))


def extreme(name: str) -> Write:
    def write(op: OpView) -> Expr:
        axes, keep = list(op.op.attr["axis"]), op.op.attr["keepdims"]
        return call(f"flow._C.{name}", op.args["input_tensor_0"], axes, keep)

    return write


def variance(op: OpView) -> Expr:
    attr = op.op.attr
    dims = attr["dim"][0] if len(attr["dim"]) == 1 else tuple(attr["dim"])
    name = f"{op.args['input_0'].atom}.var"
    return call(name, dim=dims, unbiased=attr["unbiased"], keepdim=attr["keepdim"])


def product(op: OpView) -> Expr:
    a, b = op.args["a_0"], op.args["b_0"]
    if op.op.attr["transpose_a"] or op.op.attr["alpha"] != 1.0:
        options = {key: op.op.attr[key] for key in ("transpose_a", "transpose_b", "alpha")}
        return call("flow._C.matmul", a, b, **options)
    if not op.op.attr["transpose_b"]:
        return call("flow.matmul", a, b)
    if len(op.shape["b_0"]) == 2:
        return call("F.linear", a, b)
    return call("flow._C.matmul", a, b, transpose_b=True)


def added(op: OpView) -> Expr:
    """Write a sum, or a linear layer with its bias where that is what it is."""
    x, y = op.args["x_0"], op.args["y_0"]
    is_linear = x.op is not None and x.text.startswith("F.linear(")
    if x.op is not None and is_linear and len(op.shape["y_0"]) == 1:
        return call("F.linear", x.args["a_0"], x.args["b_0"], y)
    return binary(x, "+", y)


def with_bias(op: OpView) -> Expr:
    """Write the bias of a channel, as an argument of its convolution where it follows one."""
    x, bias = op.args["a_0"], op.args["b_0"]
    if x.op is not None and x.op.type in ("conv2d", "deconv2d") and op.op.attr["axis"] == 1:
        return convolution(x.op, x.args, bias)
    return call("flow._C.bias_add", x, bias, axis=op.attr("axis"))


def conv(op: OpView) -> Expr:
    bias = op.args.get("bias_0")
    return convolution(op.op, op.args, bias)


def convolution(op: Op, args: Mapping[str, Expr], bias: Expr | None) -> Expr:
    name = "F.conv2d" if op.type == "conv2d" else "F.conv_transpose2d"
    attr = op.attr
    defaults = {"stride": ("strides", 1), "padding": ("padding_before", 0)}
    defaults |= {"dilation": ("dilation_rate", 1), "output_padding": ("output_padding", 0)}
    options: dict[str, object] = {}
    for option, (key, default) in defaults.items():
        value = pair(attr[key]) if key in attr else default
        if value != default:
            options[option] = value
    if attr.get("groups", 1) != 1:
        options["groups"] = attr["groups"]
    inputs = [args["in_0"], args["weight_0"], *([bias] if bias is not None else [])]
    return call(name, *inputs, **options)


def pair(value: tuple[int, ...]) -> object:
    return value[0] if len(set(value)) == 1 else tuple(value)


def max_pool(op: OpView) -> Expr:
    attr = op.op.attr
    options = {"stride": pair(attr["stride"])}
    for key, default in (("padding", 0), ("dilation", 1)):
        if pair(attr[key]) != default:
            options[key] = pair(attr[key])
    if attr["ceil_mode"]:
        options["ceil_mode"] = True
    return call("F.max_pool2d", op.args["x_0"], pair(attr["kernel_size"]), **options)


def avg_pool(op: OpView) -> Expr:
    attr = op.op.attr
    options = {"stride": pair(attr["stride"])}
    if pair(attr["padding"]) != 0:
        options["padding"] = pair(attr["padding"])
    return call("F.avg_pool2d", op.args["x_0"], pair(attr["kernel_size"]), **options)


def batch_norm(op: OpView) -> Expr:
    a = op.args
    inputs = (a["x_0"], a["moving_mean_0"], a["moving_variance_0"], a["gamma_0"], a["beta_0"])
    momentum = round(1 - op.floats("momentum"), 6)
    return call(
        "F.batch_norm", *inputs, training=op.attr("training"), momentum=momentum,
        eps=op.floats("epsilon"),
    )  # fmt: skip


def layer_norm(op: OpView) -> Expr:
    shape = op.shape["x_0"][op.op.attr["begin_norm_axis"] :]
    weights = [op.args.get(name, Expr("None")) for name in ("gamma_0", "beta_0")]
    return call("F.layer_norm", op.args["x_0"], tuple(shape), *weights, op.floats("epsilon"))


def gathered(op: OpView) -> Expr:
    table, indices = op.args["in_0"], op.args["indices_0"]
    if op.op.attr["axis"] == 0:
        return call("F.embedding", indices, table)
    return call("flow.index_select", table, op.attr("axis"), indices)


def sliced(op: OpView) -> Expr:
    """Write x[:, 2:4]; dims that are whole are left out after the last cut one."""
    attr, shape = op.op.attr, op.shape["x_0"]
    parts = []
    for start, stop, step, size in zip(
        attr["start"], attr["stop"], attr["step"], shape, strict=True
    ):
        whole = (start, min(stop, size), step) == (0, size, 1)
        first, last = ("" if start == 0 else start), ("" if stop >= size else stop)
        parts.append(":" if whole else f"{first}:{last}" + (f":{step}" if step != 1 else ""))
    cut = [i for i, part in enumerate(parts) if part != ":"] or [0]
    if len(parts) - cut[0] < cut[0] and cut[0] > 1:
        parts = ["...", *parts[cut[0] :]]
    else:
        parts = parts[: cut[-1] + 1]
    return Expr(f"{op.args['x_0'].atom}[{', '.join(parts)}]")


def shaped(name: str, operand: str, attr: str) -> Write:
    def write(op: OpView) -> Expr:
        sizes = op.op.attr[attr]
        if not sizes:
            return call("flow.reshape", op.args[operand], ())
        return call(f"{op.args[operand].atom}.{name}", *sizes)

    return write


def nll(op: OpView) -> Expr:
    """Write the losses of all targets, or which of them count."""
    target, ignored = op.args["target_0"], op.op.attr["ignore_index"]
    if "weight_0" in op.args:
        raise AutoDDLError(
            f"codegen: op {op.op.name} is an nll with class weights, for which there is no template; "
            "register one with autoddl.codegen.register_template('nll', …)"
        )
    if op.output.startswith("out_weight"):
        counts = compared(target, "!=", Expr(repr(ignored)))
        found = call("flow.cast", counts, f"flow.{op.dtype}")
        if op.states[op.output] == op.states["target_0"]:
            return found
        return call(f"{found.text}.to_global", sbp=sbp_text(op.states[op.output]))
    return call("flow._C.nll_loss", op.args["input_0"], target, "None", ignored, '"none"')


def binary_cross_entropy(op: OpView) -> Expr:
    name = f"F.{op.op.type}"
    return call(name, op.args["input_0"], op.args["target_0"], reduction='"none"')


def filled(op: OpView) -> Expr:
    attr = op.op.attr
    if attr["has_float_operand"]:
        value = number(attr["float_operand"])
    else:
        value = repr(attr["int_operand" if attr["has_int_operand"] else "bool_operand"])
    return call(f"{op.args['x_0'].atom}.masked_fill", op.args["mask_0"], value)


def one_hot(op: OpView) -> Expr:
    attr = op.op.attr
    kind = "floating" if op.dtype.startswith("float") else "integer"
    values = {"on_value": attr[f"{kind}_on_value"], "off_value": attr[f"{kind}_off_value"]}
    return call("flow._C.one_hot", op.args["indices_0"], attr["depth"], **values)


def made(function: str, *args: object) -> Write:
    """Write an op without inputs: it is made in its state."""

    def write(op: OpView) -> Expr:
        attr = op.op.attr
        where = {"placement": "PLACEMENT", "sbp": sbp_text(op.states[op.output])}
        if function == "arange":
            kind = "float" if op.dtype.startswith("float") else "integer"
            values = [attr[f"{kind}_{key}"] for key in ("start", "limit", "delta")]
        else:
            floating = attr["is_floating_value"]
            values = [
                tuple(attr["shape"]),
                attr[("floating" if floating else "integer") + "_value"],
            ]
        return call(f"flow.{function}", *values, dtype=f"flow.{op.dtype}", **where)

    return write


def first(function: str) -> Write:
    return lambda op: call(function, next(iter(op.args.values())))


def method(name: str) -> Write:
    return lambda op: Expr(f"{next(iter(op.args.values())).atom}.{name}()")


def listed(op: OpView) -> Expr:
    """Return the operands of a variadic op as the text of a list."""
    return Expr(f"[{', '.join(part.text for part in ordered(op.args, 'in'))}]")


def chain(op: OpView) -> Expr:
    text, *rest = ordered(op.args, "in")
    for part in rest:
        text = binary(text, "+", part)
    return text
