"""DNABERT: BERT on overlapping k-mers of DNA; few tokens, long sequences (Ji et al. 2021)."""

from __future__ import annotations

from typing import Any

from experiments.models import bert
from experiments.models.training import Built

SPECIAL = 5  # padding, unknown, class, separator, mask


def kmer_vocabulary(k: int) -> int:
    """Return how many tokens there are: all words of `k` bases, and the special ones."""
    return 4**k + SPECIAL


def _paper(k: int, sequence: int = 512) -> dict[str, Any]:
    return {
        "layers": 12, "width": 768, "heads": 12, "sequence": sequence,
        "vocabulary": kmer_vocabulary(k), "batch": 32,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "toy": {"layers": 1, "width": 16, "heads": 4, "sequence": 16, "vocabulary": 72, "batch": 8},
    "dnabert": _paper(6),
    **{f"dnabert{k}": _paper(k) for k in (3, 4, 5, 6)},
    "dnabert_long": _paper(6, sequence=2048),
}


def build(**sizes: Any) -> Built:
    """Return (training graph, (ids, segments, labels)), all int64 of shape (batch, sequence).

    `sizes` and options are those of bert.build; the toy vocabulary is that of 3-mers, filled up to a
    multiple of 8.
    """
    return bert.build(**SIZES["toy"] | sizes)
