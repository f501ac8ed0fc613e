"""The rows of torchtitan on H100: Llama 3.1 with parameters in shards, and why they have no prediction.

Its columns tell what a row needs that no program has: layers that are made again for the backward pass,
kernels that a compiler has joined, float8. All have attention in one kernel, where the zoo's LLaMA makes
scores of 8192 x 8192 for each head.

Source: pytorch/torchtitan benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.lib.frames import Row
from experiments.published.published_rows import lines

ATTENTION = "attention in one kernel has no rule with a gradient"
REASONS = {
    "recompute": ("no", "recomputed layers are priced with OneFlow's kernels, of no H100"),
    "precision": ("bfloat16", "{} is no type of ours"),
    "compiled": ("no", "kernels of a compiler are not known"),
}
"""By column what can be expressed, and why anything else cannot."""


def reason(line: dict[str, Any]) -> str:
    """Return why a row cannot be expressed."""
    found = [
        text.format(line[column])
        for column, (known, text) in REASONS.items()
        if line[column] != known
    ]
    return "; ".join([*found, ATTENTION])


def compared(data: Path) -> Iterator[Row]:
    """Yield every row with the reason why it has no prediction."""
    for line in lines(data, "torchtitan_h100"):
        yield {**line, "reason": reason(line)}
