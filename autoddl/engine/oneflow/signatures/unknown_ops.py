"""Op types without a rule, or with a user's: let the engine say how they may be split.

Its lists are not proven, and some are wrong: sqrt_square_sum has x S0 -> y P, a sum of roots instead of
the root of a sum, and roi_align_grad dy S0 -> dx B, where each device makes a part. So where no rule
stands beside a list, only what cuts an op into independent parts is taken of it (`independent`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autoddl.engine.oneflow.signatures.signature_cache import SignatureCache
from autoddl.engine.oneflow.signatures.signature_list import Query, SignatureList, signature_lists
from autoddl.sbp.program import Op, Program
from autoddl.sbp.program.ops_and_tensors import RANDOM
from autoddl.sbp.rules.registry import OpView, Signature, find, is_built_in

# The engine lists signatures for these, too, but they give other numbers than one device. So does P
# where an op makes integers of it, which search.choices leaves out.
_SAME_SEED = "each shard would draw the same random numbers"
_STATISTICS = "each shard would use its own statistics"
_REDUCES = (
    "OneFlow lists only signatures with partial sums or copies of cut inputs, which are not proven"
)
_NORMS = "each shard would use its own norm"
NEVER_ASKED: Mapping[str, str] = {
    **dict.fromkeys(RANDOM, _SAME_SEED),
    **dict.fromkeys(
        (
            "batch_norm_stats", "cudnn_fused_normalization_add_relu",
            "cudnn_fused_normalization_add_relu_grad", "fake_quantization", "min_max_observer",
            "moving_average_min_max_observer", "normalization", "normalization_add_relu",
            "normalization_add_relu_grad", "normalization_grad",
        ),
        _STATISTICS,
    ),
    "lamb_update": _NORMS,
    "lars_update": _NORMS,
}  # fmt: skip


@dataclass(frozen=True)
class EngineLists:
    """The engine's own signatures for the ops of a program whose rules did not come with autoddl.

    `answers` are by op name and number of devices; `whole` are the op types without a rule that stay
    all-broadcast, with the reason.
    """

    answers: Mapping[tuple[str, int], SignatureList]
    whole: Mapping[str, str]

    def signatures(self, op: Op, devices: int) -> tuple[Signature, ...]:
        """Return the one-axis signatures of an op; () where the engine has none."""
        answer = self.answers.get((op.name, devices))
        return (answer.signatures if answer else None) or ()


def ask(
    program: Program, sizes: Collection[int], cache: SignatureCache | None = None
) -> EngineLists:
    """Ask the engine about ops without a built-in rule, on mesh axes of these sizes.

    Answers come from `cache` (the default folder's if None) where it has them.
    """
    foreign = [op for op in program.ops if not is_built_in(op.type)]
    unknown = [op for op in foreign if find(op.type) is None]
    axes = sorted({size for size in sizes if size > 1})
    asked = [(op, size) for op in foreign if op.type not in NEVER_ASKED for size in axes]
    queries = [_query(program, op, size) for op, size in asked]
    found = signature_lists(queries, cache=cache or SignatureCache())
    answers = {(op.name, n): answer for (op, n), answer in zip(asked, found, strict=True)}
    for op, size in asked:
        if find(op.type) is None:
            answers[op.name, size] = _of_independent_parts(program, op, answers[op.name, size])
    whole = {op.type: NEVER_ASKED[op.type] for op in unknown if op.type in NEVER_ASKED}
    listed = {op.type for op, size in asked if answers[op.name, size].signatures is not None}
    for op, size in asked:
        if op.type not in listed and find(op.type) is None:
            whole.setdefault(op.type, answers[op.name, size].reason)
    return EngineLists(answers, whole)


def _of_independent_parts(program: Program, op: Op, answer: SignatureList) -> SignatureList:
    """Return what can be taken of an engine's list without a proof, or why that is nothing."""
    if answer.signatures is None:
        return answer
    view = OpView.of(op, program.shapes(op))
    kept = tuple(s for s in answer.signatures if independent(view, s))
    return SignatureList(kept) if kept else SignatureList(None, _REDUCES)


def independent(view: OpView, signature: Signature) -> bool:
    """Tell whether a signature cuts an op into parts that make their own part of every output.

    No operand is a partial sum, every output is cut, and all operands that are cut have the same size
    there (so rows are not cut beside an index that names only some of them).
    """
    cut = {name: state.dim for name, state in signature.items() if state.is_split}
    sizes = {view.shape[name][dim] for name, dim in cut.items()}
    partial = any(state.kind == "P" for state in signature.values())
    return bool(cut) and not partial and len(sizes) == 1 and cut.keys() >= {*view.outputs}


def _query(program: Program, op: Op, size: int) -> Query:
    dtypes = {operand: program.tensor[name].dtype for operand, name in op.inputs}
    return Query.of(OpView.of(op, program.shapes(op)), dtypes, size)
