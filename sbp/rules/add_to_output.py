"""Products that add their result to a given tensor: the engine fuses a following addition into them.

With `config.allow_fuse_add_to_output` an op gets the input `_add_to_output_0`, of the shape of its
result. It is added once: cut like the result, P wherever that is P.
"""

from __future__ import annotations

from dataclasses import replace

from autoddl.errors import RuleError
from autoddl.sbp.rules import matmul  # noqa: F401  registers the rules that are extended here
from autoddl.sbp.rules.registry import (
    Array,
    IndexMap,
    Linear,
    LocalOp,
    OpRule,
    OpView,
    find,
    register,
)

ADDED = "_add_to_output_0"


def with_addition(rule: OpRule, output: str) -> OpRule:
    """Return a rule that also takes an input to add to `output`, where an op has one."""

    def indices(view: OpView) -> IndexMap:
        imap = rule.indices(view)
        if ADDED not in view.inputs or ADDED in imap.dims:
            return imap
        return replace(
            imap,
            dims={**imap.dims, ADDED: imap.dims[output]},
            linear=tuple(_with_term(group, output) for group in imap.linear),
            added=imap.added | {ADDED},
        )

    def reference(op: LocalOp) -> dict[str, Array]:
        results = rule.reference(op)
        if ADDED in op.inputs:
            results[output] = results[output] + op.inputs[ADDED]
        return results

    return replace(rule, indices=indices, reference=reference)


def _with_term(group: Linear, output: str) -> Linear:
    """Add the term to a set of inputs in which `output` is linear."""
    if group.outputs is None or output in group.outputs:
        return replace(group, inputs=group.inputs | {ADDED})
    return group


def accept_addition(op_type: str, output: str) -> None:
    """Let a registered rule take an input to add to `output`.

    Raises:
        RuleError: the op type has no rule.
    """
    rule = find(op_type)
    if rule is None:
        raise RuleError(f"op type {op_type}: no rule to extend; register it first")
    register(with_addition(rule, output))


_PRODUCTS = ("matmul", "batch_matmul", "broadcast_matmul", "broadcast_matmul_grad_b")
for _name in _PRODUCTS:
    accept_addition(_name, "out_0")
