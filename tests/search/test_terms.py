"""Terms as columns: every reader is at one end, with the states that its choices mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from autoddl.search.problem import Problem
from autoddl.search.terms import FEW_READERS, Fold, Terms, many_readers
from tests.search import random_problems

KINDS = [random_problems.tree, random_problems.chain, random_problems.graph, random_problems.hub]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("make", KINDS)
def test_each_reader_is_at_one_end_and_the_producer_in_every_term(
    make: Callable[[int], Problem], wide: bool
) -> None:
    several = 0
    for seed in range(20):
        p = make(seed)
        terms = Terms(p.edge_columns, most_s=1.0, wide=wide)
        for index, edge in enumerate(p.edges):
            nodes = [edge.producer, *(node for node, _ in edge.readers)]
            arrays = [edge.source, *(states for _, states in edge.readers)]
            occurring = np.unique(np.concatenate(arrays))
            assert terms.occurring[index].tolist() == occurring.tolist()
            for found, wanted in zip(terms.by_choice(index), arrays, strict=True):
                assert occurring[found].tolist() == wanted.tolist()
            seen: Counter[int] = Counter()
            most = many_readers(len(occurring)) if wide else FEW_READERS
            several += len(terms.of(index)) > 1
            for term in terms.of(index):
                ends = list(terms.ends(term))
                assert ends[0][1] == 0
                assert len(ends) - 1 <= most
                for end, position in ends:
                    seen[position] += 1
                    assert terms.node[end] == nodes[position]
                    assert terms.arrays[terms.states[end]] is terms.by_choice(index)[position]
                part = (len(ends) - 1) / len(edge.readers)
                cost = np.minimum(edge.table.cost[np.ix_(occurring, occurring)], 1.0)
                assert terms.prices[terms.table[term]] == pytest.approx(part * cost)
            assert seen.pop(0) == len(terms.of(index))
            assert seen == Counter(range(1, len(nodes)))
    assert several or wide or make is not random_problems.hub


def test_terms_of_a_fold_are_at_the_ends_of_its_edges_and_counted() -> None:
    """One edge twice, and one with the producer of that and the reader of another."""
    p = random_problems.chain(0)
    edges = [i for i, edge in enumerate(p.edges) if len(edge.readers) == 1]
    here, there = next(
        (a, b) for a, b in combinations(edges, 2) if p.edges[a].table is p.edges[b].table
    )
    fold = Fold(np.ones(len(p.nodes), dtype=np.int64), {(here, here): 2, (here, there): 1})
    terms = Terms(p.edge_columns, fold=fold)
    alone = Terms(p.edge_columns)
    both = sorted({*alone.occurring[here].tolist(), *alone.occurring[there].tolist()})
    assert terms.occurring[here].tolist() == terms.occurring[there].tolist() == both
    members, place, copies = terms.occurrences(fold)
    first, reader = [end for end, _ in terms.ends(terms.of(here)[0])]
    _, other = [end for end, _ in terms.ends(terms.of(there)[0])]
    assert members.tolist() == [first, reader, first, other]
    assert place.tolist() == [0, 2, 4]
    assert copies.tolist() == [2.0, 1.0]
