"""Templates: how an op of the program is written in Python, as data by op type.

A template gets an `OpView` and returns the text for one output. Templates for further op types are added
with `register_template`; everything that OneFlow's functions compute from their inputs alone is fine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op
from autoddl.sbp.state import NdSbp


@dataclass(frozen=True)
class OpView:
    """What a template sees: the op, its operands' texts, shapes, and the output that is wanted.

    `args` maps inputs ("in_0") to texts, `shape` all operands to logical shapes; `output` is the
    operand that is written, of `dtype`; `states` are those of all operands.
    """

    op: Op
    args: Mapping[str, Expr]
    shape: Mapping[str, tuple[int, ...]]
    output: str
    dtype: str
    states: Mapping[str, NdSbp]

    def attr(self, name: str) -> object:
        """Return an attribute."""
        return self.op.attr[name]

    def floats(self, name: str) -> float:
        """Return an attribute that is a number."""
        return float(self.op.attr[name])

    @property
    def scalar(self) -> Expr:
        """Return the number of a scalar op: its float or its int attribute."""
        attr = self.op.attr
        if attr["has_float_operand"]:
            return Expr(number(attr["float_operand"]))
        return Expr(repr(attr["int_operand"]))


@dataclass(frozen=True)
class Template:
    """How one op type is written.

    `write` returns the text of an output. `noun` names its result where the model has no name ("": the
    name of its first operand). `inline` tells that the text may stand inside that of its reader.
    `pinned` says why its gradient has to come in the dual of its planned state, where OneFlow would
    take any.
    """

    write: Callable[[OpView], Expr]
    noun: str = "x"
    inline: bool = False
    pinned: str = ""


def template_of(op: Op) -> Template:
    """Return the template of an op.

    Raises:
        AutoDDLError: there is none for its type.
    """
    if op.type not in _TEMPLATES:
        raise AutoDDLError(
            f"codegen: op {op.name} has type {op.type!r}, for which there is no template; register how "
            f"it is written: autoddl.codegen.register_template({op.type!r}, "
            "lambda op: call('flow.…', op.args['in_0']))"
        )
    return _TEMPLATES[op.type]


def register_template(
    op_type: str, write: Callable[[OpView], Expr], *, noun: str = "x", inline: bool = False
) -> None:
    """Add (or replace) the template of an op type; see Template."""
    _TEMPLATES[op_type] = Template(write, noun, inline)


def fits_inside(op: Op, reader: Op) -> bool:
    """Tell whether an op's text may stand inside its reader's: sums take all, calls take views only."""
    return op.type in _VIEWS or reader.type in _ARITHMETIC


def is_identity(op: Op, shape: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether an op returns its one input as it is: a reshape to the same shape and the like."""
    if op.type == "reshape":
        return shape["in_0"] == shape["out_0"]
    if op.type == "expand":
        return shape["in_0"] == shape["out_0"]
    if op.type == "transpose":
        return op.attr["perm"] == tuple(range(len(op.attr["perm"])))
    return op.type in ("identity", "amp_white_identity", "amp_black_identity")


_VIEWS = frozenset({"reshape", "transpose", "expand", "expand_dims"})
_ARITHMETIC = frozenset(
    {
        "add_n", "bias_add", "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div",
        "reduce_sum", "rsqrt", "scalar_add", "scalar_mul", "scalar_div", "square",
    }
)  # fmt: skip


def _function(name: str, *operands: str) -> Callable[[OpView], Expr]:
    return lambda op: call(name, *(op.args[operand] for operand in operands))


def _sign(sign: str, left: str = "x_0", right: str = "y_0") -> Callable[[OpView], Expr]:
    return lambda op: binary(op.args[left], sign, op.args[right])


def _compare(sign: str) -> Callable[[OpView], Expr]:
    return lambda op: compared(op.args["x_0"], sign, op.args["y_0"])


def _scalar(sign: str) -> Callable[[OpView], Expr]:
    def write(op: OpView) -> Expr:
        inner = op.args["in_0"]
        if sign in ("+", "-", "*", "/"):
            mean = _mean(op) if sign == "*" else None
            return mean or binary(inner, sign, op.scalar)
        return compared(inner, sign, op.scalar)

    return write


def _mean(op: OpView) -> Expr | None:
    """Return x.mean(…) where a sum is multiplied by one over the number of its terms."""
    inner = op.args["in_0"]
    if inner.op is None or inner.op.type != "reduce_sum":
        return None
    shape = inner.shape["input_tensor_0"]
    terms = math.prod(shape[axis] for axis in inner.op.attr["axis"])
    if not math.isclose(float(op.scalar.text) * terms, 1.0, rel_tol=1e-6):
        return None
    return _reduced(inner.args["input_tensor_0"], "mean", inner.op, len(shape))


def _reduced(x: Expr, name: str, op: Op, ndim: int) -> Expr:
    axes, keep = op.attr["axis"], op.attr["keepdims"]
    if len(axes) == ndim and not keep:
        return Expr(f"{x.atom}.{name}()")
    dim = axes[0] if len(axes) == 1 else tuple(axes)
    options = f"dim={literal(dim)}" + (", keepdim=True" if keep else "")
    return Expr(f"{x.atom}.{name}({options})")


def _sum(op: OpView) -> Expr:
    return _reduced(op.args["input_tensor_0"], "sum", op.op, len(op.shape["input_tensor_0"]))


def _extreme(name: str) -> Callable[[OpView], Expr]:
    def write(op: OpView) -> Expr:
        axes, keep = list(op.op.attr["axis"]), op.op.attr["keepdims"]
        return call(f"flow._C.{name}", op.args["input_tensor_0"], axes, keep)

    return write


def _var(op: OpView) -> Expr:
    attr = op.op.attr
    dims = attr["dim"][0] if len(attr["dim"]) == 1 else tuple(attr["dim"])
    name = f"{op.args['input_0'].atom}.var"
    return call(name, dim=dims, unbiased=attr["unbiased"], keepdim=attr["keepdim"])


def _matmul(op: OpView) -> Expr:
    a, b = op.args["a_0"], op.args["b_0"]
    if op.op.attr["transpose_a"] or op.op.attr["alpha"] != 1.0:
        options = {key: op.op.attr[key] for key in ("transpose_a", "transpose_b", "alpha")}
        return call("flow._C.matmul", a, b, **options)
    if not op.op.attr["transpose_b"]:
        return call("flow.matmul", a, b)
    if len(op.shape["b_0"]) == 2:
        return call("F.linear", a, b)
    return call("flow._C.matmul", a, b, transpose_b=True)


def _add(op: OpView) -> Expr:
    """Write a sum, or a linear layer with its bias where that is what it is."""
    x, y = op.args["x_0"], op.args["y_0"]
    is_linear = x.op is not None and x.text.startswith("F.linear(")
    if x.op is not None and is_linear and len(op.shape["y_0"]) == 1:
        return call("F.linear", x.args["a_0"], x.args["b_0"], y)
    return binary(x, "+", y)


def _bias_add(op: OpView) -> Expr:
    """Write the bias of a channel, as an argument of its convolution where it follows one."""
    x, bias = op.args["a_0"], op.args["b_0"]
    if x.op is not None and x.op.type in ("conv2d", "deconv2d") and op.op.attr["axis"] == 1:
        return _convolution(x.op, x.args, bias)
    return call("flow._C.bias_add", x, bias, axis=op.attr("axis"))


def _conv(op: OpView) -> Expr:
    bias = op.args.get("bias_0")
    return _convolution(op.op, op.args, bias)


def _convolution(op: Op, args: Mapping[str, Expr], bias: Expr | None) -> Expr:
    name = "F.conv2d" if op.type == "conv2d" else "F.conv_transpose2d"
    attr = op.attr
    defaults = {"stride": ("strides", 1), "padding": ("padding_before", 0)}
    defaults |= {"dilation": ("dilation_rate", 1), "output_padding": ("output_padding", 0)}
    options: dict[str, object] = {}
    for option, (key, default) in defaults.items():
        value = _pair(attr[key]) if key in attr else default
        if value != default:
            options[option] = value
    if attr.get("groups", 1) != 1:
        options["groups"] = attr["groups"]
    inputs = [args["in_0"], args["weight_0"], *([bias] if bias is not None else [])]
    return call(name, *inputs, **options)


def _pair(value: tuple[int, ...]) -> object:
    return value[0] if len(set(value)) == 1 else tuple(value)


def _max_pool(op: OpView) -> Expr:
    attr = op.op.attr
    options = {"stride": _pair(attr["stride"])}
    for key, default in (("padding", 0), ("dilation", 1)):
        if _pair(attr[key]) != default:
            options[key] = _pair(attr[key])
    if attr["ceil_mode"]:
        options["ceil_mode"] = True
    return call("F.max_pool2d", op.args["x_0"], _pair(attr["kernel_size"]), **options)


def _avg_pool(op: OpView) -> Expr:
    attr = op.op.attr
    options = {"stride": _pair(attr["stride"])}
    if _pair(attr["padding"]) != 0:
        options["padding"] = _pair(attr["padding"])
    return call("F.avg_pool2d", op.args["x_0"], _pair(attr["kernel_size"]), **options)


def _batch_norm(op: OpView) -> Expr:
    a = op.args
    inputs = (a["x_0"], a["moving_mean_0"], a["moving_variance_0"], a["gamma_0"], a["beta_0"])
    momentum = round(1 - op.floats("momentum"), 6)
    return call(
        "F.batch_norm", *inputs, training=op.attr("training"), momentum=momentum,
        eps=op.floats("epsilon"),
    )  # fmt: skip


def _layer_norm(op: OpView) -> Expr:
    shape = op.shape["x_0"][op.op.attr["begin_norm_axis"] :]
    weights = [op.args.get(name, Expr("None")) for name in ("gamma_0", "beta_0")]
    return call("F.layer_norm", op.args["x_0"], tuple(shape), *weights, op.floats("epsilon"))


def _gather(op: OpView) -> Expr:
    table, indices = op.args["in_0"], op.args["indices_0"]
    if op.op.attr["axis"] == 0:
        return call("F.embedding", indices, table)
    return call("flow.index_select", table, op.attr("axis"), indices)


def _slice(op: OpView) -> Expr:
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


def _shaped(name: str, operand: str, attr: str) -> Callable[[OpView], Expr]:
    def write(op: OpView) -> Expr:
        sizes = op.op.attr[attr]
        if not sizes:
            return call("flow.reshape", op.args[operand], ())
        return call(f"{op.args[operand].atom}.{name}", *sizes)

    return write


def _nll(op: OpView) -> Expr:
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


def _binary_cross_entropy(op: OpView) -> Expr:
    name = f"F.{op.op.type}"
    return call(name, op.args["input_0"], op.args["target_0"], reduction='"none"')


def _filled(op: OpView) -> Expr:
    attr = op.op.attr
    if attr["has_float_operand"]:
        value = number(attr["float_operand"])
    else:
        value = repr(attr["int_operand" if attr["has_int_operand"] else "bool_operand"])
    return call(f"{op.args['x_0'].atom}.masked_fill", op.args["mask_0"], value)


def _one_hot(op: OpView) -> Expr:
    attr = op.op.attr
    kind = "floating" if op.dtype.startswith("float") else "integer"
    values = {"on_value": attr[f"{kind}_on_value"], "off_value": attr[f"{kind}_off_value"]}
    return call("flow._C.one_hot", op.args["indices_0"], attr["depth"], **values)


def _made(function: str, *args: object) -> Callable[[OpView], Expr]:
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


# With a gradient that is cut along the batch OneFlow 0.9 would take statistics of each part alone.
_STATISTICS = "keep the gradient of the batch statistics whole"

_UNARY = {  # op type: function, operand
    **{name: f"F.{name}" for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "mish", "elu")},
    **{f"{name}": f"flow.{name}" for name in ("rsqrt", "sqrt", "square", "exp", "log", "abs", "sign")},
    **{f"{name}": f"flow.{name}" for name in ("sin", "cos", "erf", "floor", "ceil", "negative")},
}  # fmt: skip
_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "greater": ">", "greater_equal": ">=", "less": "<",
    "less_equal": "<=",
}  # fmt: skip


def _first(function: str) -> Callable[[OpView], Expr]:
    return lambda op: call(function, next(iter(op.args.values())))


def _method(name: str) -> Callable[[OpView], Expr]:
    return lambda op: Expr(f"{next(iter(op.args.values())).atom}.{name}()")


_TEMPLATES: dict[str, Template] = {
    **{name: Template(_first(function), "") for name, function in _UNARY.items()},
    "rsqrt": Template(_method("rsqrt"), "scale"),
    "square": Template(_method("square"), "squares", inline=True),
    "matmul": Template(_matmul, "x", inline=True),
    "broadcast_matmul": Template(_matmul, "x", inline=True),
    "batch_matmul": Template(_matmul, "mixed", inline=True),
    "add_n": Template(lambda op: _chain(op), "x", inline=True),
    "broadcast_add": Template(_add, "", inline=True),
    "broadcast_sub": Template(_sign("-"), "", inline=True),
    "broadcast_mul": Template(_sign("*"), "", inline=True),
    "broadcast_div": Template(_sign("/"), "", inline=True),
    "broadcast_maximum": Template(_function("flow.maximum", "x_0", "y_0"), ""),
    "broadcast_minimum": Template(_function("flow.minimum", "x_0", "y_0"), ""),
    "broadcast_pow": Template(_function("flow.pow", "x_0", "y_0"), ""),
    **{f"broadcast_{k}": Template(_compare(v), "mask") for k, v in _COMPARISONS.items()},
    **{f"scalar_logical_{k}": Template(_scalar(v), "mask") for k, v in _COMPARISONS.items()},
    "scalar_add": Template(_scalar("+"), "", inline=True),
    "scalar_mul": Template(_scalar("*"), "", inline=True),
    "scalar_div": Template(_scalar("/"), "", inline=True),
    "scalar_pow": Template(lambda op: call(f"{op.args['in_0'].atom}.pow", op.scalar), ""),
    "reduce_sum": Template(_sum, "total", inline=True),
    "reduce_max": Template(_extreme("reduce_max"), "largest"),
    "reduce_min": Template(_extreme("reduce_min"), "smallest"),
    "var": Template(_var, "variance", inline=True),
    "cast": Template(lambda op: call("flow.cast", op.args["in_0"], f"flow.{op.dtype}"), ""),
    "reshape": Template(_shaped("reshape", "in_0", "shape"), "", inline=True),
    "transpose": Template(_shaped("permute", "input_0", "perm"), "", inline=True),
    "expand": Template(_shaped("expand", "in_0", "expand_shape"), "", inline=True),
    "expand_dims": Template(
        lambda op: call(f"{op.args['in_0'].atom}.unsqueeze", op.attr("axis")), "", inline=True
    ),
    "squeeze": Template(
        lambda op: call(f"{op.args['in_0'].atom}.squeeze", list(op.op.attr["axes"])), ""
    ),
    "slice": Template(_slice, "part"),
    "concat": Template(
        lambda op: call("flow.cat", ordered_list(op), dim=op.attr("axis")), "joined"
    ),
    "stack": Template(lambda op: call("flow.stack", ordered_list(op), dim=op.attr("axis")), "stacked"),
    "gather": Template(_gather, "rows"),
    "softmax": Template(lambda op: call("F.softmax", op.args["in_0"], dim=-1), "weights", inline=True),
    "log_softmax": Template(lambda op: call("F.log_softmax", op.args["in_0"], dim=-1), "log_p"),
    "nll": Template(_nll, "losses"),
    "binary_cross_entropy": Template(_binary_cross_entropy, "losses"),
    "binary_cross_entropy_with_logits": Template(_binary_cross_entropy, "losses"),
    "conv2d": Template(_conv, "x", inline=True),
    "deconv2d": Template(_conv, "x", inline=True),
    "bias_add": Template(_bias_add, "", inline=False),
    "max_pool_2d": Template(_max_pool, ""),
    "avg_pool_2d": Template(_avg_pool, ""),
    "adaptive_avg_pool2d": Template(
        lambda op: call("F.adaptive_avg_pool2d", op.args["x_0"], tuple(op.op.attr["output_size"])), ""
    ),
    "normalization": Template(_batch_norm, "", pinned=_STATISTICS),
    "layer_norm": Template(_layer_norm, ""),
    "fused_matmul_bias": Template(_function("flow._C.fused_matmul_bias", "x_0", "weight_0", "bias_0")),
    "dropout": Template(lambda op: call("F.dropout", op.args["in_0"], p=op.floats("rate")), ""),
    "masked_fill": Template(_filled, ""),
    "where": Template(_function("flow.where", "condition_0", "x_0", "y_0"), ""),
    "one_hot": Template(_one_hot, "one_hot"),
    "argmax": Template(lambda op: call("flow.argmax", op.args["in_0"], dim=-1), "choice"),
    "cumsum": Template(lambda op: call("flow.cumsum", op.args["x_0"], op.attr("dim")), "counts"),
    "ones_like": Template(_first("flow.ones_like"), "ones"),
    "zero_like": Template(_first("flow.zeros_like"), "zeros"),
    "arange": Template(_made("arange"), "positions"),
    "constant": Template(_made("full"), "constant"),
}  # fmt: skip


def ordered_list(op: OpView) -> Expr:
    """Return the operands of a variadic op as the text of a list."""
    return Expr(f"[{', '.join(part.text for part in ordered(op.args, 'in'))}]")


def _chain(op: OpView) -> Expr:
    total, *rest = ordered(op.args, "in")
    for part in rest:
        total = binary(total, "+", part)
    return total
