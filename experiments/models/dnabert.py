"""DNABERT: BERT on overlapping k-mers of DNA; few tokens, long sequences (Ji et al. 2021)."""

from __future__ import annotations

from typing import Any

from experiments.models import bert
from experiments.models.training import Built

SPECIAL = 5  # padding, unknown, class, separator, mask


def kmer_vocabulary(k: int) -> int:
    """Return how many tokens there are: all words of `k` bases, and the special ones."""
    return 4**k + SPECIAL


SIZES: dict[str, dict[str, Any]] = {
    "toy": {"layers": 1, "width": 16, "heads": 4, "sequence": 16, "vocabulary": 72, "batch": 8},
    "dnabert": {
        "layers": 12, "width": 768, "heads": 12, "sequence": 512, "vocabulary": kmer_vocabulary(6),
        "batch": 32,
    },
}  # fmt: skip


def build(**sizes: Any) -> Built:
    """Return (training graph, (ids, segments, labels)), all int64 of shape (batch, sequence).

    `sizes` and options are those of bert.build; the toy vocabulary is that of 3-mers, filled up to a
    multiple of 8.
    """
    return bert.build(**SIZES["toy"] | sizes)
