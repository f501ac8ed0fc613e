"""Whether the loss of a batch is the mean of its halves' losses: what halves in turn rest on.

Forward, each tensor is WHOLE (inputs do not matter), EACH (it has a part for every sample), a SUM over
samples or a MEAN of them. Sums of sums are sums, and a sum times 1/n, or divided by a sum of weights,
is a mean. Anything else that is made of sums or means couples samples: of

    p = softmax(x @ w),     q = mean(p),     loss = mean(q · q)

q is a MEAN, and q · q, which couples the samples, is not that of q's halves.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Op, Program
from autoddl.sbp.rules.registry import find

WHOLE, EACH, SUM, MEAN = "whole", "each", "sum", "mean"
# What is linear in all inputs that depend on the batch.
_LINEAR = frozenset(
    {
        "add_n", "broadcast_add", "broadcast_sub", "cast", "copy", "expand_dims", "identity",
        "reduce_sum", "reshape", "reshape_like", "scalar_mul", "squeeze", "transpose",
    }
)  # fmt: skip
_MEANS = frozenset({"binary_cross_entropy_with_logits_reduce_mean"})


def check_mean(whole: Program, half: Program) -> None:
    """Raise where the loss is not the mean of the halves', or an op keeps something of a batch.

    `half` is `micro_batch(whole, 2)`: what has the same shape in both has no part for every sample.

    Raises:
        AutoDDLError: which op, and why.
    """
    kinds = dict.fromkeys(whole.inputs, EACH)
    shapes = {t.name: t.shape for t in whole.tensors}
    for op in half.ops:
        if op.phase != "forward":
            continue
        read = {kinds.get(name, WHOLE) for _, name in op.inputs}
        if read == {WHOLE}:
            continue
        _check_writes(op)
        kind = _kind(op, read, whole, half)
        for _, name in op.outputs:
            cut = half.tensor[name].shape != shapes.get(name)
            kinds[name] = EACH if cut else kind
    loss = kinds.get(half.loss or "", MEAN)
    if loss != MEAN:
        raise AutoDDLError(
            f"loss {half.loss} is no mean over the samples of the batch, so halves would train "
            "otherwise; take the mean"
        )


def _check_writes(op: Op) -> None:
    rule = find(op.type)
    if rule is not None and rule.writes & {operand for operand, _ in op.inputs}:
        raise AutoDDLError(
            f"op {op.name} ({op.type}) couples the samples of a batch: it keeps what it finds in them"
        )


def _kind(op: Op, read: set[str], whole: Program, half: Program) -> str:
    """Return what an op makes that has no part for every sample."""
    rest = read - {WHOLE}
    if rest == {EACH}:
        return MEAN if op.type in _MEANS else SUM
    factors = [_factor(program, op.name) for program in (whole, half)]
    if op.type == "scalar_mul" and rest == {SUM} and factors[0] != factors[1]:
        return MEAN
    if op.type == "broadcast_div" and rest == {SUM} and WHOLE not in read:
        return MEAN
    (kind, *others) = sorted(rest)
    if op.type in _LINEAR and not others:
        return kind
    raise AutoDDLError(
        f"op {op.name} ({op.type}) couples the samples of a batch: it reads a {kind} over them"
    )


def _factor(program: Program, name: str) -> object:
    op: Mapping[str, Op] = program.op
    return op[name].attr.get("float_operand") if name in op else None
