"""How OneFlow's op types are written in Python: the table of templates."""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.codegen.source.expression import call
from autoddl.codegen.templates import Template
from autoddl.engine.oneflow.dialect import layer_writers as layer
from autoddl.engine.oneflow.dialect import op_writers as w
from autoddl.engine.oneflow.dialect.terms import dtype_text

# With a gradient that is cut along the batch OneFlow 0.9 would take statistics of each part alone.
_STATISTICS = "keep the gradient of the batch statistics whole"

_UNARY = {  # op type: function
    **{name: f"F.{name}" for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "mish", "selu")},
    **{name: f"F.{name}" for name in ("hardswish", "hardsigmoid", "quick_gelu")},
    "log_sigmoid": "F.logsigmoid", "reciprocal": "flow.reciprocal", "logical_not": "flow.logical_not",
    **{name: f"flow.{name}" for name in ("rsqrt", "sqrt", "square", "exp", "log", "abs", "sign")},
    **{name: f"flow.{name}" for name in ("sin", "cos", "erf", "floor", "ceil", "negative")},
}  # fmt: skip
_COMPARISONS = {
    "equal": "==", "not_equal": "!=", "greater": ">", "greater_equal": ">=", "less": "<",
    "less_equal": "<=",
}  # fmt: skip


TEMPLATES: Mapping[str, Template] = {
    **{name: Template(w.first(function), "") for name, function in _UNARY.items()},
    "rsqrt": Template(w.method("rsqrt"), "scale"),
    "square": Template(w.method("square"), "squares", inline=True),
    "matmul": Template(w.product, "x", inline=True),
    "broadcast_matmul": Template(w.product, "x", inline=True),
    "batch_matmul": Template(w.product, "mixed", inline=True),
    "add_n": Template(w.chain, "x", inline=True),
    "broadcast_add": Template(w.added, "", inline=True),
    "broadcast_sub": Template(w.signed("-"), "", inline=True),
    "broadcast_mul": Template(w.signed("*"), "", inline=True),
    "broadcast_div": Template(w.signed("/"), "", inline=True),
    "broadcast_maximum": Template(w.function("flow.maximum", "x_0", "y_0"), ""),
    "broadcast_minimum": Template(w.function("flow.minimum", "x_0", "y_0"), ""),
    "broadcast_pow": Template(w.function("flow.pow", "x_0", "y_0"), ""),
    **{f"broadcast_{k}": Template(w.comparison(v), "mask") for k, v in _COMPARISONS.items()},
    **{f"scalar_logical_{k}": Template(w.with_scalar(v), "mask") for k, v in _COMPARISONS.items()},
    "scalar_add": Template(w.with_scalar("+"), "", inline=True),
    "scalar_mul": Template(w.with_scalar("*"), "", inline=True),
    "scalar_div": Template(w.with_scalar("/"), "", inline=True),
    "scalar_pow": Template(lambda op: call(f"{op.args['in_0'].atom}.pow", op.scalar), ""),
    "reduce_sum": Template(w.reducing("sum"), "total", inline=True),
    "reduce_max": Template(w.extreme("reduce_max"), "largest"),
    "reduce_min": Template(w.extreme("reduce_min"), "smallest"),
    "var": Template(w.variance, "variance", inline=True),
    "cast": Template(lambda op: call("flow.cast", op.args["in_0"], dtype_text(op.dtype)), ""),
    "reshape": Template(w.shaped("reshape", "in_0", "shape"), "", inline=True),
    "transpose": Template(w.shaped("permute", "input_0", "perm"), "", inline=True),
    "expand": Template(w.shaped("expand", "in_0", "expand_shape"), "", inline=True),
    "expand_dims": Template(
        lambda op: call(f"{op.args['in_0'].atom}.unsqueeze", op.attr("axis")), "", inline=True
    ),
    "squeeze": Template(
        lambda op: call(f"{op.args['in_0'].atom}.squeeze", list(op.op.attr["axes"])), ""
    ),
    "slice": Template(w.sliced, "piece"),
    "concat": Template(
        lambda op: call("flow.cat", w.listed(op), dim=op.attr("axis")), "joined"
    ),
    "stack": Template(lambda op: call("flow.stack", w.listed(op), dim=op.attr("axis")), "stacked"),
    "gather": Template(layer.gathered, "rows"),
    "softmax": Template(lambda op: call("F.softmax", op.args["in_0"], dim=-1), "weights", inline=True),
    "log_softmax": Template(lambda op: call("F.log_softmax", op.args["in_0"], dim=-1), "log_p"),
    "nll": Template(layer.nll, "losses"),
    "binary_cross_entropy": Template(layer.binary_cross_entropy, "losses"),
    "binary_cross_entropy_with_logits": Template(layer.binary_cross_entropy, "losses"),
    "binary_cross_entropy_with_logits_reduce_mean": Template(layer.binary_cross_entropy, "x"),
    **{name: Template(layer.conv, "x", inline=True) for name in layer.CONVOLUTIONS},
    "bias_add": Template(layer.with_bias, ""),
    "max_pool_2d": Template(layer.pooled("max_pool2d"), ""),
    "avg_pool_2d": Template(layer.pooled("avg_pool2d"), ""),
    "adaptive_avg_pool2d": Template(
        lambda op: call("F.adaptive_avg_pool2d", op.args["x_0"], tuple(op.op.attr["output_size"])), ""
    ),
    "normalization": Template(layer.batch_norm, "", pinned=_STATISTICS),
    "layer_norm": Template(layer.layer_norm, ""),
    "fused_matmul_bias": Template(w.function("flow._C.fused_matmul_bias", "x_0", "weight_0", "bias_0")),
    "dropout": Template(lambda op: call("F.dropout", op.args["in_0"], p=op.floats("rate")), ""),
    "masked_fill": Template(w.filled, ""),
    "where": Template(w.function("flow.where", "condition_0", "x_0", "y_0"), ""),
    "one_hot": Template(layer.one_hot, "one_hot"),
    "argmax": Template(lambda op: call("flow.argmax", op.args["in_0"], dim=-1), "choice"),
    "cumsum": Template(lambda op: call("flow.cumsum", op.args["x_0"], op.attr("dim")), "counts"),
    "ones_like": Template(w.first("flow.ones_like"), "ones"),
    "zero_like": Template(w.first("flow.zeros_like"), "zeros"),
    "elementwise_maximum": Template(w.function("flow.maximum", "x_0", "y_0"), ""),
    "elementwise_minimum": Template(w.function("flow.minimum", "x_0", "y_0"), ""),
    "elu": Template(w.with_options("F.elu", "alpha"), ""),
    "leaky_relu": Template(w.with_options("F.leaky_relu", "alpha"), ""),
    "hardtanh": Template(w.with_options("F.hardtanh", "min_val", "max_val"), ""),
    "softplus": Template(w.with_options("F.softplus", "beta", "threshold"), ""),
    "fast_gelu": Template(lambda op: call("F.gelu", op.args["in_0"], approximate="tanh"), ""),
    "tril": Template(w.with_options("flow.tril", "diagonal"), ""),
    "triu": Template(w.with_options("flow.triu", "diagonal"), ""),
    "clip_by_scalar": Template(w.clamped("min", "max"), ""),
    "clip_by_scalar_min": Template(w.clamped("min"), ""),
    "clip_by_scalar_max": Template(w.clamped("max"), ""),
    "scalar_reverse_pow": Template(lambda op: call("flow.pow", op.scalar, op.args["in_0"]), ""),
    "reduce_prod": Template(w.reducing("prod"), "product"),
    "narrow": Template(w.narrowed, "piece"),
    "flip": Template(lambda op: call("flow.flip", op.args["x_0"], list(op.op.attr["dims"])), ""),
    "pad": Template(layer.padded, ""),
    "dim_gather": Template(
        lambda op: call("flow.gather", op.args["input_0"], op.attr("dim"), op.args["index_0"]), ""
    ),
    "embedding": Template(layer.embedded, "rows"),
    "rms_norm": Template(layer.rms_norm, ""),
    "sparse_softmax_cross_entropy": Template(
        w.function("flow._C.sparse_softmax_cross_entropy", "prediction_0", "label_0"), "losses"
    ),
    "upsample_nearest_2d": Template(layer.upsampled, ""),
    "arange": Template(w.made("arange"), "positions"),
    "constant": Template(w.made("full"), "constant"),
    **{name: Template(w.drawn, "drawn") for name in ("uniform", "normal", "randperm")},
    "bernoulli": Template(w.chosen, "chosen"),
}  # fmt: skip
