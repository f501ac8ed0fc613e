"""One line of what the engine says."""

from __future__ import annotations

import pytest

from autoddl.engine.oneflow.reason import reason


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "\x1b[1m\x1b[38;2;255;000;000mError\x1b[0m: shapes differ\n  File x",
            "Error: shapes differ",
        ),
        ("\n   \n  second  \nthird", "second"),
        ("bell\x07", "bell\\x07"),
        ("", "ValueError('')"),
    ],
)
def test_it_is_the_first_line_that_says_something(text: str, line: str) -> None:
    assert reason(ValueError(text)) == line


def test_it_is_not_longer_than_a_line() -> None:
    assert len(reason(ValueError("x" * 5000))) <= 300
