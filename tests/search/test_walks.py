"""Which ops come before or behind others: walks over columns tell what sets of ops tell."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from autoddl.sbp.program import Program
from autoddl.search import walks
from tests.programs import transformer

PROGRAM = transformer(layers=2, batch=4, length=2, vocabulary=64)


@cache
def makers(op: int) -> set[int]:
    """Return the ops that one of them waits for."""
    names = [op.name for op in PROGRAM.ops]
    found = [PROGRAM.producer.get(tensor) for _, tensor in PROGRAM.ops[op].inputs]
    return {names.index(maker.name) for maker in found if maker is not None}


@cache
def longest(begin: int) -> dict[int, int]:
    """Return how many ops follow each other from one up to each that it is needed for."""
    found = {begin: 0}
    for op in range(begin + 1, len(PROGRAM.ops)):
        known = [found[source] for source in makers(op) if source in found]
        if known:
            found[op] = 1 + max(known)
    return found


@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_ops_are_later_if_many_follow_each_other_until_then(steps: int) -> None:
    for begin in range(0, len(PROGRAM.ops), 7):
        wanted = {op for op, count in longest(begin).items() if count > steps}
        assert set(walks.later(PROGRAM, begin, steps).nonzero()[0].tolist()) == wanted


@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_ops_are_sooner_if_they_are_needed_or_need_only_what_is_long_there(steps: int) -> None:
    several = 0
    for begin in range(0, len(PROGRAM.ops), 7):
        left: dict[int, float] = {  # ops between each and `begin`
            op: count for op in range(begin + 1) if (count := longest(op).get(begin, -1)) >= 0
        }
        needed = len(left)
        for op in range(len(PROGRAM.ops)):
            if op not in left:
                least = min((left.get(s, 0) for s in makers(op)), default=math.inf)
                if least > steps:
                    left[op] = least - steps
        several += len(left) > needed
        assert set(walks.sooner(PROGRAM, begin, steps).nonzero()[0].tolist()) == set(left)
    assert several > 1


@pytest.mark.parametrize("program", [PROGRAM, replace(PROGRAM, loss=None)])
def test_what_waits_for_the_loss_reads_it_or_what_does(program: Program) -> None:
    behind = {i for i, op in enumerate(program.ops) if op.phase != "forward"}
    late, changed = set[int](), {program.loss}
    for op in sorted(behind):
        if any(tensor in changed for _, tensor in program.ops[op].inputs):
            late.add(op)
            changed.update(tensor for _, tensor in program.ops[op].outputs)
    wanted = behind if program.loss is None else late
    assert set(walks.waiting_for_loss(program).nonzero()[0].tolist()) == wanted
    assert wanted
