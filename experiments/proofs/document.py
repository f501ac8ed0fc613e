"""Write what the proofs found as docs/op_rules.md: a row per op type, a row per model and mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoddl.sbp.rules import registry
from experiments.proofs.engine import EngineReport, TypeReport
from experiments.proofs.execution import ExecutionReport
from experiments.proofs.oracle import OracleReport

# Why the rules lack signatures that OneFlow lists.
NOT_OURS = {
    "cast": "a partial sum cast to integers is no partial sum",
    "bernoulli": "every shard would draw the same numbers",
    "dropout": "every shard would draw the same mask",
    "random_mask_like": "every shard would draw the same mask",
    "fused_matmul_bias_add_relu_dropout": "every shard would draw the same mask",
    "fused_bias_add_scale_mask_softmax_dropout": "wrong: it cuts the dim of the softmax",
    "scatter_nd": "wrong: cut indices make partial sums",
    "scatter_nd_like": "wrong: cut indices make partial sums",
    "where_scalar_x": "wrong unless the scalar is 0",
    "where_scalar_y": "wrong unless the scalar is 0",
    "prelu_grad": "wrong: slopes and channels are cut apart",
    "dim_gather": "wrong where the index is shorter than the table",
    "flip": "wrong: it cuts a flipped dim that is counted from the end",
    "binary_cross_entropy_with_logits": "wrong in 1-D: the weights have the dim that is cut",
    "sqrt_square_sum": "wrong: the root comes before the sum",
    "slice_update": "not modelled: a whole value where a part is enough",
    "split_like": "not modelled: P of likes that lack the dim that is cut",
    "slice": "not modelled: rows of other devices as zeros",
    "normalization_add_relu": "its bit mask is laid out per shard",
    "normalization_add_relu_grad": "its bit mask is laid out per shard",
    "binary_cross_entropy_with_logits_reduce_mean": "not modelled: it divides by the whole count",
    "binary_cross_entropy_with_logits_reduce_mean_grad": "not modelled: it divides by the whole count",
}
_PREFACE = """\
<!-- Written by `python -m experiments.check_rules --oracle --engine --execution --document`; \
do not edit. -->

# Op rules and their proofs

Three independent checks stand behind every signature that a plan can contain:

- **oracle**: the op's NumPy reference on simulated ranks against one device, in float64 on asymmetric
  data, for every signature of every case; and every combination of states tried, to find right
  signatures that a rule lacks;
- **engine**: our one-axis signatures beside OneFlow's own list for the same op, attributes, shapes and
  ranks (2 and 4), for all cases and all ops of the zoo's training steps; what it refuses is masked
  (`autoddl/engine/oneflow/model/refused.json`);
- **execution**: random whole plans on four real ranks, three training steps, losses, weights and
  buffers against one process.
"""


def document(oracle: OracleReport, engine: EngineReport, execution: ExecutionReport) -> str:
    """Return the text of docs/op_rules.md."""
    return "\n".join(
        [
            _PREFACE,
            "## Result\n",
            f"- oracle (seed {oracle.seed}): {oracle.summary()}",
            f"- engine: {engine.summary()}",
            f"- execution: {execution.summary()}",
            "\n## Execution\n",
            *_table(execution.columns, execution.rows()),
            "\n## Op types\n",
            "Signatures are counted over all cases, ranks and zoo ops; all-broadcast is one of them. "
            "`cut i` stands for the signature that cuts index i of the op's index map, `P a b` for the "
            "one that passes partial sums of a and b on, `+ P like` for an operand of which only the "
            "shape is read.\n",
            *_table(
                ("op type", "family", "ours", "OneFlow's", "common", "why not", "oracle"),
                _rows(oracle, engine),
            ),
            "",
        ]
    )


def _rows(oracle: OracleReport, engine: EngineReport) -> Iterable[tuple[str, ...]]:
    seen = {t.op_type: t for t in engine.types}
    for result in oracle.ops:
        rule = registry.find(result.op_type)
        proof = f"{result.checked} right" if not result.wrong else f"{len(result.wrong)} WRONG"
        proof += f", {result.found} of {result.valid} found" if result.valid else ""
        t = seen.get(result.op_type)
        counts = _counts(t) if t is not None else ("", "", "")
        family = rule.family if rule else ""
        why = _why_not(t) if t is not None else "not asked"
        yield (f"`{result.op_type}`", family, *counts, why, proof)


def _counts(t: TypeReport) -> tuple[str, str, str]:
    ours = sum(len(i.accepted) + len(i.refused) for i in t.instances)
    common = sum(len(i.accepted) for i in t.instances)
    theirs = common + sum(len(i.engine_only) for i in t.instances)
    return str(ours), str(theirs) if t.listed else "no list", str(common)


def _why_not(t: TypeReport) -> str:
    parts = []
    if t.refused:
        parts.append(f"OneFlow refuses {_shortened(t.refused)}")
    if t.engine_only:
        reason = NOT_OURS.get(t.op_type, "not modelled")
        parts.append(f"only OneFlow lists {_shortened(t.engine_only)}: {reason}")
    parts += t.reasons
    return "; ".join(parts)


def _shortened(texts: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(f"`{text}`" for text in texts[:limit])
    return shown + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]
