"""Which results are kept first where not all have to be made again."""

from __future__ import annotations

from autoddl.planner.whole.less_again import _Copies


def chain(*read: bool) -> _Copies:
    """Return h = x @ w in 3 s and r = relu(h) in 1 s, each of 8 bytes."""
    return _Copies((3.0, 1.0), (8, 8), ((), (0,)), read)


def test_what_spares_most_seconds_per_byte_is_kept_first() -> None:
    assert chain(False, True).in_turn() == [(4 / 8, frozenset())]
    assert chain(True, True).in_turn() == [(3 / 8, frozenset({1})), (1 / 8, frozenset())]


def test_what_brings_more_behind_another_one_comes_with_it() -> None:
    """Of a and b that c is made of, keeping one spares little until the other is kept."""
    copies = _Copies((1.0, 1.0, 8.0), (1, 1, 100), ((), (0,), (1,)), (True, False, True))
    rates = [rate for rate, _ in copies.in_turn()]
    assert rates == sorted(rates, reverse=True)
    assert [sorted(rest) for _, rest in copies.in_turn()][-1] == []


def test_what_nobody_reads_is_not_made_again() -> None:
    assert chain(True, False).needed(()) == {0}
    assert chain(False, True).needed(()) == {0, 1}
    assert chain(False, True).needed({0}) == {1}
