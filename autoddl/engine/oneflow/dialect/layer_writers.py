"""How ops of layers are written: convolutions, pooling, normalisation, tables, losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoddl.codegen.source.expression import Expr, call, compared
from autoddl.codegen.templates import ScriptOp
from autoddl.engine.oneflow.dialect.terms import dtype_text, sbp_text
from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op
from autoddl.sbp.state import OWN, NdSbp

CONVOLUTIONS = {
    **{f"conv{n}d": f"F.conv{n}d" for n in (1, 2, 3)},
    **{f"deconv{n}d": f"F.conv_transpose{n}d" for n in (1, 2, 3)},
}


Boxed = Callable[[Expr, NdSbp, NdSbp], Expr]


def global_boxed(value: Expr, before: NdSbp, after: NdSbp) -> Expr:
    """Write the change of a global tensor to another state."""
    return call(f"{value.text}.to_global", sbp=Expr(sbp_text(after)))


def with_bias(op: ScriptOp) -> Expr:
    """Write the bias of a channel, as an argument of its convolution where it follows one."""
    x, bias = op.args["a_0"], op.args["b_0"]
    if x.op is not None and x.op.type in CONVOLUTIONS and op.op.attr["axis"] == 1:
        return convolution(x.op, x.args, bias)
    return call("flow._C.bias_add", x, bias, axis=op.attr("axis"))


def conv(op: ScriptOp) -> Expr:
    bias = op.args.get("bias_0")
    return convolution(op.op, op.args, bias)


def convolution(op: Op, args: Mapping[str, Expr], bias: Expr | None) -> Expr:
    name = CONVOLUTIONS[op.type]
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


def pooled(function: str) -> Callable[[ScriptOp], Expr]:
    def write(op: ScriptOp) -> Expr:
        attr = op.op.attr
        options = {"stride": pair(attr["stride"])}
        for key, default in (("padding", 0), ("dilation", 1)):
            if key in attr and pair(attr[key]) != default:
                options[key] = pair(attr[key])
        if attr.get("ceil_mode"):
            options["ceil_mode"] = True
        return call(f"F.{function}", op.args["x_0"], pair(attr["kernel_size"]), **options)

    return write


def batch_norm(op: ScriptOp, *axes: int) -> Expr:
    """Write a BatchNorm; `axes` are arguments of the function that has statistics of the whole batch."""
    a, none = op.args, Expr("None")
    moving = (a.get("moving_mean_0", none), a.get("moving_variance_0", none))
    inputs = (a["x_0"], *moving, a["gamma_0"], a["beta_0"])
    momentum = round(1 - op.floats("momentum"), 6)
    cut = op.op.attr["training"] and op.states["x_0"].cutting(0)
    if cut and OWN not in op.states["mean_0"]:
        return call("whole_batch_norm", *inputs, Expr(repr(momentum)), op.floats("epsilon"), *axes)
    return call(
        "F.batch_norm", *inputs, training=op.attr("training"), momentum=momentum,
        eps=op.floats("epsilon"),
    )  # fmt: skip


def layer_norm(op: ScriptOp) -> Expr:
    shape = op.shape["x_0"][op.op.attr["begin_norm_axis"] :]
    weights = [op.args.get(name, Expr("None")) for name in ("gamma_0", "beta_0")]
    return call("F.layer_norm", op.args["x_0"], tuple(shape), *weights, op.floats("epsilon"))


def gathered(op: ScriptOp) -> Expr:
    table, indices = op.args["in_0"], op.args["indices_0"]
    if op.op.attr["axis"] == 0:
        return call("F.embedding", indices, table)
    return call("flow.index_select", table, op.attr("axis"), indices)


def nll(op: ScriptOp, boxed: Boxed = global_boxed) -> Expr:
    """Write the losses of all targets, or which of them count; `boxed` writes a change of states."""
    target, ignored = op.args["target_0"], op.op.attr["ignore_index"]
    if "weight_0" in op.args:
        raise AutoDDLError(
            f"codegen: op {op.op.name} is an nll with class weights, for which there is no template; "
            "register one with autoddl.codegen.register_template('nll', …)"
        )
    if op.output.startswith("out_weight"):
        counts = compared(target, "!=", Expr(repr(ignored)))
        found = call("flow.cast", counts, dtype_text(op.dtype))
        if op.states[op.output] == op.states["target_0"]:
            return found
        return boxed(found, op.states["target_0"], op.states[op.output])
    return call("flow._C.nll_loss", op.args["input_0"], target, None, ignored, "none")


def binary_cross_entropy(op: ScriptOp) -> Expr:
    """Write the losses of all elements, or their mean."""
    name = op.op.type.removesuffix("_reduce_mean")
    reduction = "none" if name == op.op.type else "mean"
    return call(f"F.{name}", op.args["input_0"], op.args["target_0"], reduction=reduction)


def one_hot(op: ScriptOp) -> Expr:
    attr = op.op.attr
    kind = "floating" if op.dtype.startswith("float") else "integer"
    values = {"on_value": attr[f"{kind}_on_value"], "off_value": attr[f"{kind}_off_value"]}
    return call("flow._C.one_hot", op.args["indices_0"], attr["depth"], **values)


def padded(op: ScriptOp) -> Expr:
    kind = "floating" if op.dtype.startswith(("float", "bfloat")) else "integral"
    value = op.op.attr[f"{kind}_constant_value"]
    return call("F.pad", op.args["x_0"], tuple(op.op.attr["padding"]), value=value)


def embedded(op: ScriptOp) -> Expr:
    attr = op.op.attr
    options = {"padding_idx": attr["padding_idx"]}
    if attr["scale_grad_by_freq"]:
        options["scale_grad_by_freq"] = True
    return call("F.embedding", op.args["indices_0"], op.args["weight_0"], **options)


def rms_norm(op: ScriptOp) -> Expr:
    weight = op.args.get("weight_0", Expr("None"))
    shape = list(op.op.attr["normalized_shape"])
    return call("flow._C.rms_norm", op.args["x_0"], weight, shape, op.floats("epsilon"))


def upsampled(op: ScriptOp) -> Expr:
    attr = op.op.attr
    if attr["output_size"]:
        return call(
            "F.interpolate", op.args["x_0"], size=tuple(attr["output_size"]), mode="nearest"
        )
    scale = (attr["height_scale"], attr["width_scale"])
    return call("F.interpolate", op.args["x_0"], scale_factor=pair(scale), mode="nearest")
