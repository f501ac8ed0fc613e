"""Terms as columns: every reader is at one end, with the states that its choices mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from autoddl.search.network.cost_network import CostNetwork
from autoddl.search.reductions.quotient import Multiplicities
from autoddl.search.relaxation import factor_graph
from autoddl.search.relaxation.factor_graph import Terms, many_readers
from tests.search import random_problems
from tests.search.objects import edges_of

KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]


@pytest.mark.parametrize("most", [4, 8])
@pytest.mark.parametrize("make", KINDS)
def test_each_reader_is_at_one_end_and_the_producer_in_every_term(
    make: Callable[[int], CostNetwork], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factor_graph, "MANY_READERS", most)
    several = 0
    for seed in range(20):
        p = make(seed)
        terms = Terms(p, most_s=1.0)
        for index, edge in enumerate(edges_of(p)):
            nodes = [edge.producer, *(node for node, _ in edge.readers)]
            arrays = [edge.source, *(states for _, states in edge.readers)]
            occurring = np.unique(np.concatenate(arrays))
            assert terms.sets[terms.set[index]].tolist() == occurring.tolist()
            seen: Counter[int] = Counter()
            mine = range(terms.first[index], terms.first[index + 1])
            several += len(mine) > 1
            for term in mine:
                ends = range(terms.begin[term], terms.begin[term + 1])
                assert terms.position[ends[0]] == 0
                assert len(ends) - 1 <= many_readers(len(occurring)) <= most
                for end in ends:
                    position = int(terms.position[end])
                    seen[position] += 1
                    assert terms.variable[end] == nodes[position]
                    at, states = terms.states_at[end], arrays[position]
                    assert (occurring[terms.states[at : at + len(states)]] == states).all()
                part = (len(ends) - 1) / len(edge.readers)
                cost = np.minimum(edge.table.cost[np.ix_(occurring, occurring)], 1.0)
                assert terms.prices[terms.table[term]] == pytest.approx(part * cost)
            assert seen.pop(0) == len(mine)
            assert seen == Counter(range(1, len(nodes)))
    assert several or most == 8 or make is not random_problems.hub


def test_terms_of_a_fold_are_at_the_ends_of_its_edges_and_counted() -> None:
    """One edge twice, and one with the producer of that and the reader of another."""
    p = random_problems.chain(0)
    edges = [i for i, edge in enumerate(edges_of(p)) if len(edge.readers) == 1]
    here, there = next(
        (a, b) for a, b in combinations(edges, 2) if edges_of(p)[a].table is edges_of(p)[b].table
    )
    every = np.ones(len(p), dtype=np.int64)
    pairs = np.array([here, here, here, there])
    copies = Multiplicities(every, np.array([0, 2, 4]), pairs, np.array([2, 1]))
    terms, alone = Terms(p, copies=copies), Terms(p)
    both = {*alone.sets[alone.set[here]].tolist(), *alone.sets[alone.set[there]].tolist()}
    for factor in (here, there):
        assert terms.sets[terms.set[factor]].tolist() == sorted(both)
    members, place, times = terms.occurrences(copies)
    first, reader = (int(terms.begin[terms.first[here]]) + i for i in range(2))
    other = int(terms.begin[terms.first[there]]) + 1
    assert members.tolist() == [first, reader, first, other]
    assert place.tolist() == [0, 2, 4]
    assert times.tolist() == [2.0, 1.0]
