"""The search of chains: where only one rule keeps an assignment, dead ends, and what comes once."""

from __future__ import annotations

import numpy as np
import pytest

from autoddl.errors import InfeasibleError
from autoddl.search.rivals.hidup.chain import Chain, Unit
from autoddl.search.rivals.hidup.pareto import search
from tests.search.rivals.hidup.brute_force import as_printed_s, assignments, random_chain


def unit(*rows: tuple[int, int, float], once_s: float = 0.0) -> Unit:
    before, after, seconds = zip(*rows, strict=True)
    once = np.full(len(rows), once_s)
    return Unit(np.array(before), np.array(after), np.array(seconds, dtype=float)[:, None], once)


def moves(rows: list[list[float]]) -> np.ndarray:
    return np.array([rows], dtype=float)


def test_a_longer_stage_is_kept_that_hides_what_follows() -> None:
    """Form 0 is reached after 4 + 4 s or 5 + 5 s; only a move of 5 s tells, and no move is needed."""
    chain = Chain(
        [unit((0, 0, 4), (0, 0, 5), once_s=1), unit((1, 0, 5))], [moves([[0, 5], [5, 0]])],
        np.array([0]),
    )  # fmt: skip
    found = search(chain)
    assert found.signatures == (0, 0) and found.begins == (1,)
    assert found.seconds == as_printed_s((0, 5), (4, 5)) + 1


def test_a_stage_goes_on_where_forms_stay() -> None:
    chain = Chain([unit((0, 0, 2)), unit((0, 0, 3))], [moves([[0]])], np.array([0]))
    found = search(chain)
    assert found.begins == () and found.seconds == 10


def test_what_can_not_be_reached_is_said() -> None:
    chain = Chain([unit((0, 0, 2)), unit((1, 0, 3))], [moves([[0, np.inf], [1, 0]])], np.array([0]))
    with pytest.raises(InfeasibleError, match="no assignment"):
        search(chain)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("seed", range(15))
def test_no_assignment_is_faster(seed: int, passes: int) -> None:
    chain = random_chain(np.random.default_rng((seed, passes)), 4, passes)
    least_s, signatures = min(assignments(chain))
    found = search(chain)
    assert found.seconds == pytest.approx(least_s, rel=1e-12)
    assert found.signatures == signatures


@pytest.mark.parametrize("seed", range(40))
def test_long_moves_that_come_first_are_hidden(seed: int) -> None:
    """What bounds the communication that is left has to count the cut at which a stage ends."""
    chain = random_chain(np.random.default_rng(seed), 4, 1)
    shorter = [8 * costs / 16.0**place for place, costs in enumerate(chain.moves)]
    chain = Chain(chain.units, shorter, chain.ends)
    assert search(chain).seconds == pytest.approx(min(assignments(chain))[0], rel=1e-12)


def test_what_is_kept_does_not_grow_with_the_chain() -> None:
    """A stage may have begun on any cut before, but only so much of it is of use."""
    rng = np.random.default_rng(1)
    units = [unit(*[(a, b, rng.exponential()) for a in (0, 1) for b in (0, 1)]) for _ in range(6)]
    between = [moves([[0, 1], [1, 0]])] * 6

    def kept(times: int) -> int:
        return search(Chain(units * times, (between * times)[1:], np.arange(2))).kept

    assert kept(16) - kept(8) <= 1.1 * (kept(8) - kept(4)) * 2
