"""The longest chain of works, against a dense relaxation."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from autoddl.search.step.dependency_path import longest_path
from tests.perfmodel.works import SimulatedWork, graphs


@given(graphs())
def test_the_longest_chain_of_works_is_that_of_a_dense_relaxation(
    found: list[SimulatedWork],
) -> None:
    seconds = np.array([sum(s for _, s in work.parts) for work in found], dtype=float)
    pairs = sorted((later, n) for n, work in enumerate(found) for later in work.next)
    begin = np.searchsorted([later for later, _ in pairs], np.arange(len(found) + 1))
    before = np.array([n for _, n in pairs], dtype=np.int64)
    between = np.arange(len(pairs), dtype=float)
    works, slots = longest_path(seconds, begin, before, between)
    far = np.full((len(found), len(found)), -np.inf)
    for slot, (later, n) in enumerate(pairs):
        far[n, later] = between[slot] + seconds[later]
    for middle in range(len(found)):  # Floyd and Warshall
        far = np.maximum(far, far[:, [middle]] + far[[middle], :])
    longest = max(seconds.max(), (seconds[:, None] + far).max())
    chain = [pairs[slot] for slot in slots.tolist()]
    assert [later for later, _ in chain] == works[1:].tolist()
    assert [n for _, n in chain] == works[:-1].tolist()
    assert seconds[works].sum() + between[slots].sum() == longest
