"""The order of tasks against its rule, taken literally: a list that is searched for every task."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from autoddl.engine.oneflow.model.memory.execution_order import execution_order
from autoddl.engine.oneflow.model.memory.task_graph import RankTasks
from tests.autoddl.engine.oneflow.model.memory.graphs import task_graphs
from tests.support.rows import lists

KINDS = "soon", "transfer", "computation"


@given(task_graphs())
def test_the_order_is_that_of_the_rule(rank: RankTasks) -> None:
    assert execution_order(rank).tolist() == literally(rank)


def literally(rank: RankTasks) -> list[int]:
    """Run at each turn what runs soon; else one transfer, if there is one, and its share of the rest."""
    tasks, before = rank.tasks, lists(rank.before)
    count = len(tasks)
    key = list(zip(added_bytes(rank), latest(before), tasks.order.tolist(), strict=True))
    left, done, order = set(range(count)), set[int](), list[int]()

    def kind(task: int) -> str:
        return "soon" if tasks.soon[task] else "transfer" if tasks.transfer[task] else "computation"

    ready = {n for n in left if not before[n]}
    while ready:
        soon, moving, working = (
            sorted((n for n in ready if kind(n) == wanted), key=key.__getitem__) for wanted in KINDS
        )
        share = 1
        if moving:
            rest = [sum(kind(n) == wanted for n in left) for wanted in KINDS]
            share = min(len(working) // len(moving), rest[2] // rest[1])
        turn = soon or [*moving[:1], *working[:share]]
        order += turn
        done.update(turn)
        left.difference_update(turn)
        ready = {n for n in left if done.issuperset(before[n])}
    return order


def added_bytes(rank: RankTasks) -> list[int]:
    """The bytes that each task makes, less its share of those that it is one of the readers of."""
    added = [0] * len(rank.tasks)
    sizes = np.where(rank.buffers.reused, rank.buffers.size, 0).tolist()
    rows = zip(rank.buffers.producer.tolist(), sizes, lists(rank.readers), strict=True)
    for producer, size, readers in rows:
        added[producer] += size
        for reader in readers:
            added[reader] -= size // len(readers)
    return added


def latest(before: list[list[int]]) -> list[int]:
    """The last layer of each task; those in the last five layers are never put off."""
    layers: list[int] = []
    for others in before:
        layers.append(max((layers[other] + 1 for other in others), default=0))
    last = max(layers)
    found = [last] * len(before)
    for task in reversed(range(len(before))):
        bound = layers[task] - 1 if layers[task] >= last - 4 else found[task]
        for other in before[task]:
            found[other] = min(found[other], bound)
    return found
