"""Time ops on a GPU with PyTorch: `python torch_ops.py OPS.json OPS.csv`, with PyTorch alone.

OPS.json is what op_shapes.py writes: op types of OneFlow with the shapes of their operands. Each runs as
the PyTorch op that does the same work, in a CUDA graph of many copies, so that no launch is timed;
float32 products run in TF32, as OneFlow's do. The CSV has the seconds of each; data_sheet_profiles.py
makes the kernels of bundled profiles of it.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "bool": torch.bool,
}  # fmt: skip
COLUMNS = ("op_type", "family", "variant", "dtype", "flops", "moved_bytes", "seconds")
TOUCHED = 1 << 28  # bytes that the copies in a graph touch together, several times the L2 cache
COPIES = (4, 64)  # of an op in a graph, at least and at most
REPETITIONS = 9
TABLES = {"gather": "in_0", "unsorted_segment_sum_like": "like_0"}  # whose rows indices are of
aten = torch.ops.aten


def _pairs(attr: dict[str, Any]) -> tuple[Any, ...]:
    return attr["strides"], attr["padding_before"], attr["dilation_rate"]


def _convolution_backward(x: Any, weight: Any, dy: Any, attr: dict[str, Any], which: int) -> Any:
    mask = [number == which for number in range(3)]
    none = [0] * len(attr["strides"])
    return aten.convolution_backward(
        dy, x, weight, None, *_pairs(attr), False, none, attr["groups"], mask
    )


def _product(t: dict[str, Any], a: dict[str, Any]) -> Any:
    left = t["a_0"].transpose(-1, -2) if a.get("transpose_a") else t["a_0"]
    return torch.matmul(left, t["b_0"].transpose(-1, -2) if a.get("transpose_b") else t["b_0"])


def _product_of_rows(t: dict[str, Any], _: Any) -> Any:
    return t["a_0"].flatten(0, -2).t() @ t["b_0"].flatten(0, -2)


def _layer_norm_grad(t: dict[str, Any], a: dict[str, Any], mask: list[bool]) -> Any:
    size = list(t["x_0"].shape[a["begin_params_axis" if mask[1] else "begin_norm_axis"] :])
    weight = (
        t["gamma_0"] if "gamma_0" in t else torch.ones(size, device="cuda", dtype=t["x_0"].dtype)
    )
    mean, rstd = (t[k].unsqueeze(-1) for k in ("mean_0", "inv_variance_0"))
    return aten.native_layer_norm_backward(
        t["dy_0"], t["x_0"], size, mean, rstd, weight.to(t["x_0"].dtype), weight, mask
    )


def _slice(x: Any, a: dict[str, Any]) -> Any:
    return x[tuple(slice(*ends) for ends in zip(a["start"], a["stop"], a["step"], strict=True))]


def _slice_grad(t: dict[str, Any], a: dict[str, Any]) -> Any:
    whole = torch.zeros(a["like_shape"], device="cuda", dtype=t["dy_0"].dtype)
    return _slice(whole, a).copy_(t["dy_0"])


def _added_by_index(t: dict[str, Any], _: Any) -> Any:
    rows = torch.zeros_like(t["like_0"])
    return rows.index_add_(0, t["segment_ids_0"].flatten(), t["data_0"].flatten(0, -2))


def _momentum(t: dict[str, Any], a: dict[str, Any]) -> Any:
    return torch._fused_sgd_(
        [t["model_0"]], [t["model_diff_0"]], [t["momentum_0"]], weight_decay=0.0, momentum=a["beta"],
        lr=1e-3, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def _adam(t: dict[str, Any], _: Any) -> Any:
    step = torch.ones((), device="cuda")
    return torch._fused_adam_(
        [t["model_0"]], [t["model_diff_0"]], [t["m_0"]], [t["v_0"]], [], [step], lr=1e-3, beta1=0.9,
        beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def _two(act: Callable[..., Any]) -> Callable[..., Any]:
    return lambda t, _: act(t["x_0"], t["y_0"])


def _one(act: Callable[..., Any], name: str = "in_0") -> Callable[..., Any]:
    return lambda t, _: act(t[name])


OPS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "cast": lambda t, a: t["in_0"].to(t["out"]),
    "momentum_update": _momentum,
    "adam_update": _adam,
    "reshape": _one(torch.clone),
    "transpose": lambda t, a: t["input_0"].permute(a["perm"]).clone(
        memory_format=torch.contiguous_format),
    "slice": lambda t, a: _slice(t["x_0"], a).contiguous(),
    "slice_grad": _slice_grad,
    "concat": lambda t, a: torch.cat([t[k] for k in sorted(t) if k.startswith("in_")], a["axis"]),
    "broadcast_like": lambda t, a: t["x_0"].expand(t["like_0"].shape).contiguous(),
    "masked_fill": lambda t, a: t["x_0"].masked_fill(t["mask_0"], -1e4),
    "add_n": lambda t, a: torch.add(t["in_0"], t["in_1"]),
    "broadcast_add": _two(torch.add), "broadcast_sub": _two(torch.sub),
    "broadcast_mul": _two(torch.mul), "broadcast_div": _two(torch.div),
    "bias_add": lambda t, a: t["a_0"] + t["b_0"].view(-1, *[1] * (t["a_0"].dim() - 1 - a["axis"])),
    "scalar_mul": lambda t, a: t["in_0"] * 0.5, "scalar_add": lambda t, a: t["in_0"] + 1,
    "relu": _one(torch.relu, "x_0"), "gelu": _one(F.gelu), "silu": _one(F.silu),
    "square": _one(torch.square, "x_0"), "rsqrt": _one(torch.rsqrt, "x_0"),
    "relu_grad": lambda t, a: aten.threshold_backward(t["dy_0"], t["y_0"], 0),
    "gelu_grad": lambda t, a: aten.gelu_backward(t["dy_0"], t["x_0"]),
    "silu_grad": lambda t, a: aten.silu_backward(t["dy_0"], t["x_0"]),
    "matmul": _product, "batch_matmul": _product, "broadcast_matmul": _product,
    "broadcast_matmul_grad_b": _product_of_rows,
    "conv2d": lambda t, a: aten.convolution(
        t["in_0"], t["weight_0"], None, *_pairs(a), False, [0, 0], a["groups"]),
    "conv_data_grad": lambda t, a: _convolution_backward(t["x_like_0"], t["filter_0"], t["dy_0"], a, 0),
    "conv_filter_grad": lambda t, a: _convolution_backward(
        t["x_0"], torch.empty(t["shapes"]["filter_diff_0"], device="cuda", dtype=t["x_0"].dtype),
        t["dy_0"], a, 1),
    "deconv2d": lambda t, a: F.conv_transpose2d(t["in_0"], t["weight_0"], None, a["strides"]),
    "reduce_sum": lambda t, a: t["input_tensor_0"].sum(a["axis"]),
    "reduce_sum_like": lambda t, a: t["x_0"].sum(a["axis"]) if a["axis"] else t["x_0"].clone(),
    "max_pool_2d": lambda t, a: F.max_pool2d(t["x_0"], a["kernel_size"], a["stride"], a["padding"]),
    "max_pool_2d_grad": lambda t, a: aten.max_pool2d_with_indices_backward(
        t["dy_0"], t["x_0"], a["kernel_size"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"],
        t["indice_0"]),
    "normalization": lambda t, a: aten.native_batch_norm(
        t["x_0"], t["gamma_0"], t["beta_0"], t["moving_mean_0"], t["moving_variance_0"], True, 0.1, 1e-5),
    "normalization_grad": lambda t, a: aten.native_batch_norm_backward(
        t["dy_0"], t["x_0"], t["gamma_0"], None, None, t["mean_0"], t["inv_variance_0"], True, 1e-5,
        [True] * 3),
    "softmax": lambda t, a: torch.softmax(t["in_0"], -1),
    "log_softmax": lambda t, a: torch.log_softmax(t["in_0"], -1),
    "softmax_grad": lambda t, a: aten._softmax_backward_data(t["dy_0"], t["y_0"], -1, t["y_0"].dtype),
    "log_softmax_grad": lambda t, a: aten._log_softmax_backward_data(
        t["dy_0"], t["prob_0"], -1, t["prob_0"].dtype),
    "layer_norm": lambda t, a: F.layer_norm(
        t["x_0"], t["x_0"].shape[a["begin_norm_axis"] :], t["gamma_0"].to(t["x_0"].dtype),
        t["beta_0"].to(t["x_0"].dtype)),
    "layer_norm_grad": lambda t, a: _layer_norm_grad(t, a, [True, False, False]),
    "layer_norm_param_grad": lambda t, a: _layer_norm_grad(t, a, [False, True, True]),
    "gather": lambda t, a: F.embedding(t["indices_0"], t["in_0"]),
    "unsorted_segment_sum_like": _added_by_index,
}  # fmt: skip


def tensors(op: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of an op, the shapes of all operands and the dtype of its output."""
    shapes = {name: shape for name, shape, *_ in op["operands"]}
    found: dict[str, Any] = {"shapes": shapes}
    rows = shapes[TABLES[op["type"]]][0] if op["type"] in TABLES else 2
    for name, shape, dtype, is_input in op["operands"]:
        kind = DTYPES[dtype]
        if not is_input:
            found["out"] = kind
        elif kind.is_floating_point:
            found[name] = torch.rand(shape, device="cuda", dtype=kind) + 0.1
        else:
            found[name] = torch.randint(0, rows, shape, device="cuda").to(kind)
    return found


def seconds(op: dict[str, Any]) -> float:
    """Return the median seconds of an op, from graphs of many copies of it."""
    inputs, attr, act = tensors(op), op["attr"], OPS[op["type"]]
    copies = max(COPIES[0], min(COPIES[1], TOUCHED // max(1, int(op["moved_bytes"]))))
    for _ in range(3):
        act(inputs, attr)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            act(inputs, attr)
    graph.replay()
    taken = []
    for _ in range(REPETITIONS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3 / copies)
    return median(taken)


def main(source: str, target: str) -> None:
    """Time every op of a file whose type is known; write the CSV."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.cuda.get_device_properties(0)
    versions = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    with open(source) as file, open(target, "w", newline="") as out:
        out.write(f"# {device.name}, {device.total_memory} B, {versions}\n")
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(COLUMNS)
        for op in json.load(file):
            if op["type"] not in OPS:
                continue
            try:
                taken = seconds(op)
            except RuntimeError as error:
                line = str(error).splitlines()[0]
                sys.stderr.write(f"{op['type']} {op['operands']}: left out, {line}\n")
                torch.cuda.synchronize()
                continue
            known = (op[k] for k in ("type", "family", "variant", "dtype", "flops", "moved_bytes"))
            rows.writerow([*known, f"{taken:.4g}"])


if __name__ == "__main__":
    main(*sys.argv[1:])
