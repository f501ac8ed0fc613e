"""Let the backward pass of a stage begin with the first gradient that arrives, on CUDA devices.

With micro-batches OneFlow makes boxings ops of the compute stream, if all of a stage's forward pass comes
before all of its backward pass in its order of ops; else those of one of the passes go through the host.
So ops that need no gradient (part of a layer norm's, a boxing behind a buffer) wait for the first one:

    buffer → boxing → matmul's gradient     becomes     buffer, arrived gradient → boxing → …

Source: OneFlow 0.9, core/job_rewriter/insert_nccl_logical_op_pass.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from autoddl.engine.oneflow.job.stage_writer import StageWriter

_BOXING, _TRANSFER = "autoddl-boxing-", "autoddl-transfer-"


def begin_with_gradients(staged: StageWriter) -> None:
    """Add control edges from the first gradient that arrives in each stage of several devices."""
    ops, program, transfers = staged.writer.ops, staged.program, staged.plan.transfers
    readers: dict[str, list[str]] = {}
    for op in ops.values():
        for name in _read(op):
            readers.setdefault(name, []).append(op.name)

    @cache
    def is_late(name: str) -> bool:
        """Tell whether an op belongs to the backward pass, or is there for what does."""
        if name.startswith(_BOXING):
            behind = readers.get(name, ())
            return bool(behind) and all(map(is_late, behind))
        return name in program.op and program.op[name].phase == "backward"

    def is_gradient(name: str) -> bool:
        """Tell whether what an op makes depends on a gradient."""
        if not name.startswith(_TRANSFER):
            return is_late(name)
        item = transfers[int(name.removeprefix(_TRANSFER).partition("-")[0])]
        return staged.brings_gradient(item.tensor)

    for stage, part in enumerate(staged.parts):
        names = list(staged.groups[stage].op_set.op_name)
        first = next((n for n in names if n.startswith(_TRANSFER) and is_gradient(n)), None)
        if part.mesh.size == 1 or first is None:
            continue
        needed = _needed(ops, first)
        for name in names:
            early = is_late(name) and not any(map(is_gradient, _read(ops[name])))
            if early and name not in needed:  # what makes the first gradient can't wait for it
                ops[name].ctrl_in_op_name.append(first)


def _read(op: Any) -> Iterator[str]:
    """Yield the ops whose results an op reads."""
    for port in op.user_conf.input.values():
        for lbn in port.s:
            yield lbn.split("/")[0]


def _needed(ops: dict[str, Any], name: str) -> set[str]:
    """Return all ops that come before one."""
    found, stack = set[str](), [name]
    while stack:
        op = ops.get(stack.pop())
        if op is not None and op.name not in found:
            found.add(op.name)
            stack += [*_read(op), *op.ctrl_in_op_name]
    return found
