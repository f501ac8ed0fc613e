"""Sizes, rates and seconds: `quantity("4M", BINARY_BYTES)` is 4194304; `bytes_text` prints it again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

_PREFIXES = "kmgt"
MOST = 1e300  # what floats hold
BYTES = {
    **{"": 1, "b": 1},
    **{p + b: 1000**i for i, p in enumerate(_PREFIXES, 1) for b in ("", "b")},
    **{p + b: 1024**i for i, p in enumerate(_PREFIXES, 1) for b in ("i", "ib")},
}
"""Units of memory: KB is 1000 bytes, KiB 1024."""
BINARY_BYTES = {
    **{"": 1, "b": 1, "ib": 1},
    **{p + b: 1024**i for i, p in enumerate("kmg", 1) for b in ("", "b", "ib")},
}
"""Units of messages, as nccl-tests and tc have them: K and KB are 1024 bytes."""
SECONDS = {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "min": 60}
"""Units of time."""
BIT_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
"""Units of tc's rates, bits per second."""


def quantity(text: str | float, units: Mapping[str, float]) -> float:
    """Return a number, or one with a unit in small or capital letters; NaN for anything else."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return math.nan
    if not isinstance(text, str):
        return math.inf if text > MOST else float(text)
    match = re.fullmatch(
        r"\s*((?:\d+\.?\d*|\.\d+)(?:e\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE | re.ASCII
    )
    if match is None or match[2].lower() not in units:
        return math.nan
    return float(match[1]) * units[match[2].lower()]


def seconds_text(seconds: float) -> str:
    """Return seconds with a fitting unit: "1.50 s", "12.3 ms", "4.5 µs"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return (
        f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 or seconds == 0 else f"{seconds * 1e6:.1f} µs"
    )


def runs_text(numbers: Iterable[int]) -> str:
    """Return ascending whole numbers, those that follow each other as one: "0-3, 8"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def bytes_text(size: float) -> str:
    """Return bytes with a binary unit: "3.5 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
