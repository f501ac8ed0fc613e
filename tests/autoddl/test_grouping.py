"""Equal rows against those of tuples; a permutation and its inverse."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoddl.grouping import distinct, inverse


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
