"""Sizes and rates are read as their notations mean them, and printed so that people read them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autoddl.units import BINARY_BYTES, BIT_RATES, BYTES, bytes_text, quantity, seconds_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 << 30), ("500MB", 500e6), ("512 mb", 512e6), ("1.5k", 1500), ("1e9", 1e9),
        (".5Ti", 1 << 39), (" 7 ", 7), (16e9, 16e9), (3, 3),
    ],
)  # fmt: skip
def test_bytes(text: Any, size: float) -> None:
    assert quantity(text, BYTES) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("8K", 8192), ("8k", 8192), ("4M", 4 << 20), ("1G", 1 << 30), ("2GiB", 2 << 30)],
)
def test_message_sizes(text: str, size: int) -> None:
    assert quantity(text, BINARY_BYTES) == size


def test_rates() -> None:
    assert quantity("500mbit", BIT_RATES) == 5e8 and quantity("1.5 Gbit", BIT_RATES) == 1.5e9


@pytest.mark.parametrize("text", ["", "8X", "-8", "8 8", "K", "1.2.3", "8e", "٣", None, True, [8]])
def test_what_is_none(text: Any) -> None:
    assert math.isnan(quantity(text, BYTES))


def test_units_are_those_asked_for() -> None:
    assert math.isnan(quantity("8T", BINARY_BYTES)) and math.isnan(quantity("5", BIT_RATES))


def test_printed() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1 << 10, 3.5 * 2**20, 2**41)] == [
        "0 B", "1023 B", "1.0 KiB", "3.5 MiB", "2048.0 GiB"
    ]  # fmt: skip
    assert [seconds_text(s) for s in (0.0, 4.5e-6, 1.23e-2, 1.5)] == [
        "0.00 ms", "4.5 µs", "12.30 ms", "1.50 s"
    ]  # fmt: skip
