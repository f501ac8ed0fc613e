"""Rows of different lengths, and equal ones, against lists and tuples; a permutation and its inverse."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoddl.ragged import Ragged, distinct, inverse


def lists(found: Ragged) -> list[list[int]]:
    return [found.items[a:b].tolist() for a, b in pairwise(found.start.tolist())]


ROWS = st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6)


@given(ROWS, st.data())
def test_rows_are_those_of_lists(rows: list[list[int]], data: st.DataObject) -> None:
    found = Ragged.of(rows)
    assert lists(found) == rows
    assert found.row.tolist() == [n for n, row in enumerate(rows) for _ in row]
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    taken = found.take(np.array(numbers, dtype=np.int64))
    assert lists(taken) == [rows[number] for number in numbers]


@given(ROWS, st.randoms())
def test_items_of_a_row_keep_their_order(rows: list[list[int]], rng: Random) -> None:
    order = [n for n, row in enumerate(rows) for _ in row]
    rng.shuffle(order)
    left = [list(row) for row in rows]
    items = [left[number].pop(0) for number in order]
    found = Ragged.sorted(np.array(order, np.int64), np.array(items, np.int64), len(rows))
    assert lists(found) == rows


@given(ROWS)
def test_equal_rows_are_found_once_as_they_come(rows: list[list[int]]) -> None:
    first, which = Ragged.of(rows).distinct()
    assert [rows[number] for number in first] == [
        list(row) for row in dict.fromkeys(map(tuple, rows))
    ]
    assert [rows[first[number]] for number in which] == rows


@given(st.lists(st.tuples(st.integers(-1, 3), st.booleans(), st.integers(-1, 2)), max_size=9))
def test_equal_rows_have_one_number(rows: list[tuple[int, bool, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    first, which = distinct(*columns or [np.zeros(0, np.int64)])
    known = sorted(set(rows))
    assert [rows[n] for n in first] == known
    assert first.tolist() == [rows.index(row) for row in known]
    assert [known[n] for n in which] == rows


@given(st.permutations(range(6)))
def test_an_inverse_undoes(order: list[int]) -> None:
    assert np.array(order)[inverse(np.array(order))].tolist() == list(range(6))
