"""What two halves take: by hand, by the paper's formula, and as works of the simulation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.search.rivals.hidup.brute_force import (
    as_printed_s,
    best_order_s,
    random_stages,
    simulated_s,
)

EXACT = 1e-12


def test_an_example_by_hand() -> None:
    """Half 1 computes 0–3, talks 3–5 while half 2 computes 3–6; then it waits for that until 6."""
    c, p = (0, 2), (3, 1)
    assert as_printed_s(c, p) == simulated_s(c, p) == 9


@pytest.mark.parametrize("seed", range(100))
def test_formula_and_simulation_agree_where_all_stages_communicate(seed: int) -> None:
    c, p = random_stages(np.random.default_rng(seed), "all c > 0")
    printed_s = as_printed_s(c, p)
    assert simulated_s(c, p) == pytest.approx(printed_s, rel=EXACT)
    assert best_order_s(c, p) <= printed_s * (1 + EXACT)
    reverse = as_printed_s([0, *c[:0:-1]], p[::-1])
    assert reverse == pytest.approx(printed_s, rel=EXACT)  # so the backward pass is one more pass


def test_turns_are_not_always_the_best_order() -> None:
    """Half 1 goes on at once, and talks 2–5; half 2 computes 2–4, talks 5–8 and computes 8–11."""
    c, p = (0.0, 0.0, 3.0), (1.0, 1.0, 3.0)
    assert as_printed_s(c, p) == 1 + (1 + 1) + (3 + 3) + 3
    assert best_order_s(c, p) == 11


def test_the_best_order_of_two_stages_by_hand() -> None:
    """The link is never idle from 1 on, and its last half has 1 to do."""
    assert best_order_s((0, 5), (1, 1)) == as_printed_s((0, 5), (1, 1)) == 1 + 5 + 5 + 1
