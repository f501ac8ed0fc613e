"""Matrix products."""

from __future__ import annotations

from autoddl.sbp.rules.registry import OpView
from experiments.rule_cases.reading import case


def _matmul(op_type: str, text: str, transposed: str = "", alpha: float = 1.0) -> OpView:
    return case(
        op_type, text, transpose_a="a" in transposed, transpose_b="b" in transposed, alpha=alpha
    )


CASES: tuple[OpView, ...] = (
    _matmul("matmul", "a: 8 4, b: 4 12 -> out: 8 12"),
    _matmul("matmul", "a: 8 4, b: 12 4 -> out: 8 12", "b"),
    _matmul("matmul", "a: 4 8, b: 4 12 -> out: 8 12", "a", alpha=0.5),
    _matmul("matmul", "a: 4 8, b: 12 4 -> out: 8 12", "ab"),
    _matmul("batch_matmul", "a: 8 4 12, b: 8 12 4 -> out: 8 4 4"),
    _matmul("batch_matmul", "a: 4 4 4 8, b: 4 4 12 8 -> out: 4 4 4 12", "b", alpha=2.0),
    _matmul("batch_matmul", "a: 4 8 4, b: 4 8 12 -> out: 4 4 12", "a"),
    _matmul("broadcast_matmul", "a: 4 8 12, b: 12 4 -> out: 4 8 4"),
    _matmul("broadcast_matmul", "a: 4 8 12, b: 4 12 -> out: 4 8 4", "b"),
    _matmul("broadcast_matmul", "a: 8 12, b: 4 12 4 -> out: 4 8 4"),
    _matmul("broadcast_matmul", "a: 4 4 4 8, b: 4 8 12 -> out: 4 4 4 12"),
    case("broadcast_matmul_grad_b", "a: 8 12, b: 8 4 -> out: 12 4", alpha=1.0),
    case("broadcast_matmul_grad_b", "a: 4 8 12, b: 4 8 4 -> out: 12 4", alpha=0.5),
)
