"""How ops are written: functions from an ScriptOp to the text of one output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autoddl.codegen.source.expression import Expr, binary, call, compared, literal, number, ordered
from autoddl.codegen.templates import ScriptOp
from autoddl.engine.oneflow.dialect.terms import dtype_text, sbp_text
from autoddl.sbp.program import Op

Write = Callable[[ScriptOp], Expr]


def function(name: str, *operands: str) -> Write:
    return lambda op: call(name, *(op.args[operand] for operand in operands))


def signed(sign: str) -> Write:
    return lambda op: binary(op.args["x_0"], sign, op.args["y_0"])


def scaled(op: ScriptOp) -> Expr:
    """Write the product with a number, as it is."""
    return binary(op.args["in_0"], "*", op.scalar)


def comparison(sign: str) -> Write:
    return lambda op: compared(op.args["x_0"], sign, op.args["y_0"])


def with_scalar(sign: str) -> Write:
    def write(op: ScriptOp) -> Expr:
        inner = op.args["in_0"]
        if sign in ("+", "-", "*", "/"):
            found = mean(op) if sign == "*" else None
            return found or binary(inner, sign, op.scalar)
        return compared(inner, sign, op.scalar)

    return write


def mean(op: ScriptOp) -> Expr | None:
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


def reducing(name: str) -> Write:
    x = "input_tensor_0"
    return lambda op: reduced(op.args[x], name, op.op, len(op.shape[x]))


def extreme(name: str) -> Write:
    def write(op: ScriptOp) -> Expr:
        axes, keep = list(op.op.attr["axis"]), op.op.attr["keepdims"]
        return call(f"flow._C.{name}", op.args["input_tensor_0"], axes, keep)

    return write


def variance(op: ScriptOp) -> Expr:
    attr = op.op.attr
    dims = attr["dim"][0] if len(attr["dim"]) == 1 else tuple(attr["dim"])
    name = f"{op.args['input_0'].atom}.var"
    return call(name, dim=dims, unbiased=attr["unbiased"], keepdim=attr["keepdim"])


def product(op: ScriptOp) -> Expr:
    a, b = op.args["a_0"], op.args["b_0"]
    if op.op.attr["transpose_a"] or op.op.attr["alpha"] != 1.0:
        options = {key: op.op.attr[key] for key in ("transpose_a", "transpose_b", "alpha")}
        return call("flow._C.matmul", a, b, **options)
    if not op.op.attr["transpose_b"]:
        return call("flow.matmul", a, b)
    if _is_linear(op.op, op.shape):
        return call("F.linear", a, b)
    return call("flow._C.matmul", a, b, transpose_b=True)


def added(op: ScriptOp) -> Expr:
    """Write a sum, or a linear layer with its bias where that is what it is."""
    x, y = op.args["x_0"], op.args["y_0"]
    if x.op is not None and _is_linear(x.op, x.shape) and len(op.shape["y_0"]) == 1:
        return call("F.linear", x.args["a_0"], x.args["b_0"], y)
    return binary(x, "+", y)


def _is_linear(op: Op, shape: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether an op is a linear layer without its bias: rows times the transpose of a weight."""
    attr = op.attr
    return (
        op.type in ("matmul", "broadcast_matmul")
        and (attr["transpose_a"], attr["transpose_b"], attr["alpha"]) == (False, True, 1.0)
        and len(shape["b_0"]) == 2
    )


Bound = Callable[[int, int], Expr]
"""Writes a place of a dim of the whole tensor."""


def _as_it_is(place: int, dim: int) -> Expr:
    return Expr(literal(place))


def sliced(op: ScriptOp, bound: Bound = _as_it_is) -> Expr:
    """Write x[:, 2:4]; dims that are whole are left out after the last cut one."""
    attr, shape = op.op.attr, op.shape["x_0"]
    parts = []
    bounds = zip(attr["start"], attr["stop"], attr["step"], shape, strict=True)
    for dim, (start, stop, step, size) in enumerate(bounds):
        whole = (start, min(stop, size), step) == (0, size, 1)
        first = "" if start == 0 else bound(start, dim).text
        last = "" if stop >= size else bound(stop, dim).text
        parts.append(
            ":" if whole else f"{first}:{last}" + (f":{literal(step)}" if step != 1 else "")
        )
    cut = [i for i, part in enumerate(parts) if part != ":"] or [0]
    if len(parts) - cut[0] < cut[0] and cut[0] > 1:
        parts = ["...", *parts[cut[0] :]]
    else:
        parts = parts[: cut[-1] + 1]
    return Expr(f"{op.args['x_0'].atom}[{', '.join(parts)}]")


def shaped(name: str, operand: str, attr: str) -> Write:
    def write(op: ScriptOp) -> Expr:
        sizes = op.op.attr[attr]
        if not sizes:
            return call("flow.reshape", op.args[operand], ())
        return call(f"{op.args[operand].atom}.{name}", *sizes)

    return write


def filled(op: ScriptOp) -> Expr:
    attr = op.op.attr
    if attr["has_float_operand"]:
        value: object = float(attr["float_operand"])
    else:
        value = attr["int_operand" if attr["has_int_operand"] else "bool_operand"]
    return call(f"{op.args['x_0'].atom}.masked_fill", op.args["mask_0"], value)


def made(function: str) -> Write:
    """Write an op without inputs: it is made in its state."""
    return lambda op: _made(
        op, function, placement=op.placement, sbp=Expr(sbp_text(op.states[op.output]))
    )


def made_whole(function: str) -> Write:
    """Write an op without inputs as a local tensor that has all of it."""
    return lambda op: _made(op, function, device=op.placement)


def _made(op: ScriptOp, function: str, **where: Expr) -> Expr:
    attr = op.op.attr
    if function == "arange":
        kind = "float" if op.dtype.startswith("float") else "integer"
        values = [attr[f"{kind}_{key}"] for key in ("start", "limit", "delta")]
    else:
        floating = attr["is_floating_value"]
        values = [tuple(attr["shape"]), attr[("floating" if floating else "integer") + "_value"]]
    return call(f"flow.{function}", *values, dtype=dtype_text(op.dtype), **where)


def drawn(op: ScriptOp) -> Expr:
    """Write random numbers, the same on every device."""
    return _drawn(op, placement=op.placement, sbp=Expr(sbp_text(op.states[op.output])))


def drawn_whole(op: ScriptOp) -> Expr:
    """Write random numbers as a local tensor that has all of them."""
    return _drawn(op, device=op.placement)


def _drawn(op: ScriptOp, **where: Expr) -> Expr:
    attr = op.op.attr
    if op.op.type == "randperm":
        return call("flow.randperm", attr["n"], **where)
    if op.op.type == "uniform":
        function, factor, shift = "flow.rand", attr["to"] - attr["from"], attr["from"]
    else:
        function, factor, shift = "flow.randn", attr["std"], attr["mean"]
    made = call(function, tuple(attr["shape"]), dtype=dtype_text(op.dtype), **where)
    made = made if factor == 1 else binary(made, "*", Expr(number(factor)))
    return made if shift == 0 else binary(made, "+", Expr(number(shift)))


def chosen(op: ScriptOp) -> Expr:
    """Write zeros and ones that are drawn with one probability, or each with its own."""
    p = op.floats("p")
    return call("flow.bernoulli", op.args["in_0"], **({} if p < 0 else {"p": p}))


def first(function: str) -> Write:
    return lambda op: call(function, next(iter(op.args.values())))


def method(name: str) -> Write:
    return lambda op: Expr(f"{next(iter(op.args.values())).atom}.{name}()")


def listed(op: ScriptOp) -> Expr:
    """Return the operands of a variadic op as the text of a list."""
    return Expr(f"[{', '.join(part.text for part in ordered(op.args, 'in'))}]")


def chain(op: ScriptOp) -> Expr:
    text, *rest = ordered(op.args, "in")
    for part in rest:
        text = binary(text, "+", part)
    return text


def with_options(name: str, *attrs: str) -> Write:
    """Write a function of the one input and some attributes."""

    def write(op: ScriptOp) -> Expr:
        return call(name, next(iter(op.args.values())), *(op.op.attr[key] for key in attrs))

    return write


def clamped(*bounds: str) -> Write:
    """Write x.clamp(min=…, max=…)."""

    def write(op: ScriptOp) -> Expr:
        kind = "floating" if op.dtype.startswith(("float", "bfloat")) else "integral"
        options = {bound: op.op.attr[f"{kind}_{bound}"] for bound in bounds}
        return call(f"{op.args['x_0'].atom}.clamp", **options)

    return write


def narrowed(op: ScriptOp, bound: Bound = _as_it_is) -> Expr:
    attr = op.op.attr
    dim = attr["dim"] % len(op.shape["in_0"])
    start, length = (bound(attr[name], dim) for name in ("start", "length"))
    return call(f"{op.args['in_0'].atom}.narrow", attr["dim"], start, length)
