"""Tuples that are made when they are first read."""

from __future__ import annotations

import pickle

from autoddl.sbp.lazy import LazyTuple


def test_items_are_made_once_and_only_when_they_are_read() -> None:
    made = []
    expected = ("a", "b")

    def make() -> tuple[str, ...]:
        made.append(1)
        return expected

    rows = LazyTuple(make)
    assert not made
    assert list(rows) == ["a", "b"]
    assert (len(rows), rows[1], rows[:1]) == (2, expected[1], expected[:1])
    assert rows == expected and expected == rows and rows == LazyTuple(lambda: expected)
    assert rows != expected[:1]
    assert (hash(rows), repr(rows)) == (hash(expected), repr(expected))
    assert pickle.loads(pickle.dumps(rows)) == expected
    assert made == [1]
