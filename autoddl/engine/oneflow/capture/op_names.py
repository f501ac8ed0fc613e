"""Names of a job's ops that are the same in every trace of a graph.

OneFlow names most ops by a count that begins anew with each trace. What scales gradients back after
loss scaling goes on counting: "Sys-DiffScale-ScalarMul-model.0.bias_out-2227" becomes
"Sys-DiffScale-ScalarMul-model.0.bias_out". Inputs have the graph's own name, and what they are called
with: "_Train_0_input.0.1_3" becomes "input.0.1", "_Train_0_input.1.0_y" of the keyword y "input.1.y"; so
do casts of inputs under mixed precision: "_Train_0_input.0.1_3-out-cast_f2h" becomes
"input.0.1-out-cast_f2h".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SCALING = "Sys-DiffScale-ScalarMul-"
_SCALER = "System-Train-DynamicLossScale"
_BETWEEN = "System-"
# What is there once for each gradient, and which operand that is.
_GRADIENT_PORTS = (
    ("ClipGradient-GlobalNorm-ScalarMul-", "x"), ("RegularizeGradient-L1L2-", "model_diff"),
)  # fmt: skip


def neutral_name(name: str, graph_name: str) -> str:
    """Return the name of an input or output without the graph's own, any other as it is."""
    match = re.fullmatch(rf"_{re.escape(graph_name)}_(input|output)\.([\d.]+)_(.*)", name)
    return f"{match[1]}.{place(match[2], match[3])}" if match else name


def place(path: str, last: str) -> str:
    """Return where in a call a tensor is: by positions, the last by its key if it has one.

    The key tells tensors apart where calls give them in another order.
    """
    return f"{path.rpartition('.')[0]}.{last}" if last.isidentifier() else path


def state_name(name: str, graph_name: str = "") -> str:
    """Return the name of a state of loss scaling with the name of a graph in it, or with none.

    "System-Train-DynamicLossScale-Train_0-LossScale" is "System-Train-DynamicLossScale-LossScale" in
    programs and checkpoints, since graphs are numbered. Other names stay.
    """
    match = re.fullmatch(rf"({_SCALER})-(?:.*-)?(LossScale|GoodStepCounter)", name)
    return "-".join(filter(None, (match[1], graph_name, match[2]))) if match else name


def neutral(job: Any) -> Any:
    """Return a job whose names are neutral: itself, or a copy if there is any to change."""
    names = dict(_numbered(job))
    if not names:
        return job
    found = type(job)()
    found.CopyFrom(job)
    rename(found, names)
    return found


def neutralise(job: Any) -> None:
    """Give the ops of a job neutral names."""
    rename(job, dict(_numbered(job)))


def gradient_port(op: Any) -> str:
    """Return which input of an op is a gradient that it clips or adds decay to; "" for other ops."""
    found = (p for name, p in _GRADIENT_PORTS if op.name.startswith(f"{_BETWEEN}{name}"))
    port = next(found, "") if op.WhichOneof("op_type") == "user_conf" else ""
    return port if port in op.user_conf.input else ""


def is_precision_cast(name: str) -> bool:
    """Tell whether an op is a cast that mixed precision has added, by its name."""
    return name.endswith(("-cast_f2h", "-cast_h2f"))


def is_sparse_update(op: Any) -> bool:
    """Tell whether an op updates the rows of a table that a batch has looked up."""
    return bool(op.name.startswith("System-Optimizer-IndexedSlices-"))


def is_added_by_a_pass(name: str) -> bool:
    """Tell whether an op is one that OneFlow adds to a traced graph, by its name."""
    return is_precision_cast(name) or name.startswith(SCALING)


def scales_accumulated(op: Any) -> bool:
    """Tell whether an op divides a sum over micro-batches; loss scaling has the same names."""
    ports = op.user_conf.input
    sources = ports["in"].s if op.name.startswith(SCALING) and "in" in ports else ()
    return any(re.search(r"-acc-\d+/", lbn) for lbn in sources)


def _numbered(job: Any) -> Iterator[tuple[str, str]]:
    """Yield the names that differ from trace to trace, and what they become."""
    for op in job.net.op:
        numbered = re.fullmatch(rf"({SCALING}.*)-\d+", op.name)
        if numbered and not scales_accumulated(op):
            yield op.name, numbered[1]
        cast = re.fullmatch(r"_.+_input\.([\d.]+)_(.*)(-out-cast_...)", op.name)
        if cast and is_precision_cast(op.name):
            yield op.name, f"input.{place(cast[1], cast[2])}{cast[3]}"


def rename(job: Any, names: Mapping[str, str]) -> None:
    """Give ops of a job other names, wherever it mentions them."""
    if not names:
        return

    def lbn(old: str) -> str:
        op, slash, blob = old.partition("/")
        return names.get(op, op) + slash + blob

    for op in job.net.op:
        op.name = names.get(op.name, op.name)
        op.ctrl_in_op_name[:] = [names.get(n, n) for n in op.ctrl_in_op_name]
        kind = op.WhichOneof("op_type")
        if kind == "user_conf":
            for ports in (op.user_conf.input, op.user_conf.output):
                for port in ports.values():
                    port.s[:] = [lbn(s) for s in port.s]
        elif kind == "output_conf":
            setattr(op.output_conf, "in", lbn(getattr(op.output_conf, "in")))
    for group in job.placement.placement_group:
        group.op_set.op_name[:] = [names.get(n, n) for n in group.op_set.op_name]
    for group in job.placement.blob_placement_group:
        for blob in group.lbi:
            blob.op_name = names.get(blob.op_name, blob.op_name)
    for module in job.module_name2module_conf.values():
        module.ops[:] = [names.get(n, n) for n in module.ops]
    if job.job_conf.HasField("train_conf"):  # to write into one that is not there makes it
        train = job.job_conf.train_conf
        train.loss_lbn[:] = [lbn(s) for s in train.loss_lbn]
        for conf in train.optimizer_conf:
            conf.variable_grad_lbns[:] = [lbn(s) for s in conf.variable_grad_lbns]
    view = job.job_parallel_view_conf
    for table in (
        view.op_name2sbp_signature_conf,
        view.op_name2nd_sbp_signature_conf,
        view.op_name2is_local_parallel_view,
    ):
        _rekey(table, names.get)
    _rekey(job.helper.lbn2logical_blob_desc, lbn)


def _rekey(table: Any, name: Any) -> None:
    """Give the entries of a protobuf map other keys."""
    found: Mapping[str, Any] = {key: table[key] for key in table}
    messages = {}
    for key, value in found.items():
        if hasattr(value, "CopyFrom"):
            messages[key] = type(value)()
            messages[key].CopyFrom(value)
        else:
            messages[key] = value
    table.clear()
    for key, value in messages.items():
        new = name(key) or key
        if hasattr(value, "CopyFrom"):
            table[new].CopyFrom(value)
        else:
            table[new] = value
