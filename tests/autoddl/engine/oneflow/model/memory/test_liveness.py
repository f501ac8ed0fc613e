"""Chains of tasks against a walk over buffers; blocks against the buffers that they are for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from autoddl.engine.oneflow.model.memory.liveness import blocks, course, merged_chains
from autoddl.engine.oneflow.model.memory.task_graph import PARAMETER, RankTasks
from tests.autoddl.engine.oneflow.model.memory.graphs import task_graphs
from tests.support.rows import lists


@given(task_graphs())
def test_chains_are_merged_tasks_that_buffers_connect(rank: RankTasks) -> None:
    tasks, near = rank.tasks, [set[int]() for _ in range(len(rank.tasks))]
    for producer, readers in zip(rank.buffers.producer.tolist(), lists(rank.readers), strict=True):
        for reader in readers:
            once = tasks.updates[producer] != tasks.updates[reader]
            if tasks.merged[producer] and tasks.merged[reader] and not (rank.accumulates and once):
                near[producer].add(reader)
                near[reader].add(producer)
    variables = {n for n, kind in enumerate(rank.buffers.kind) if kind == PARAMETER}
    reads = [variables & set(row) for row in lists(tasks.reads)]
    updates = [n for n, row in enumerate(reads) if row and tasks.updates[n] and tasks.merged[n]]
    if rank.compute_stream and updates:  # the learning rate connects them
        for other in updates[1:]:
            near[updates[0]].add(other)
            near[other].add(updates[0])
    chains, seen = merged_chains(rank), set[int]()
    for task in range(len(tasks)):
        if task in seen:
            continue
        mine, stack = set[int](), [task]
        while stack:
            number = stack.pop()
            if number not in mine:
                mine.add(number)
                stack += near[number]
        seen |= mine
        assert {n for n in range(len(tasks)) if chains[n] == chains[task]} == mine


@given(task_graphs())
def test_blocks_hold_what_is_alive_at_their_peak(rank: RankTasks) -> None:
    found, sizes = blocks(rank), rank.buffers.size
    alone = {n for n in range(len(sizes)) if sizes[n] and not rank.buffers.reused[n]}
    assert {row[0] for row in lists(found.alive) if row and row[0] in alone} == alone
    for size, alive in zip(found.size.tolist(), lists(found.alive), strict=True):
        assert len(set(alive)) == len(alive)
        assert sum(sizes[n] for n in alive) <= size
    assert found.size.sum() <= sizes.sum()


@given(task_graphs())
def test_updates_behind_sums_lie_in_the_memory_of_the_backward_pass(rank: RankTasks) -> None:
    """Where ops are chained before they are lowered, the lesser of the two chains takes nothing."""
    if not rank.logical_chains:
        return
    apart = blocks(replace(rank, logical_chains=False))
    found, updates = blocks(rank), rank.tasks.updates
    makers = rank.buffers.producer
    shared = [row for row in lists(apart.alive) if len(row) > 1]
    late = [row for row in shared if updates[makers[row[0]]]]
    assert len(found.size) == len(apart.size)
    taken = (found.size > 0).sum()
    assert taken == (apart.size > 0).sum() - bool(late)
    assert found.size.sum() < apart.size.sum() + rank.buffers.size.max()


@given(task_graphs())
def test_the_course_holds_buffers_from_their_task_to_their_last_reader(rank: RankTasks) -> None:
    found, buffers, count = course(rank), rank.buffers, len(rank.tasks)
    assert sorted(found.order.tolist()) == list(range(count))
    place = {task: n for n, task in enumerate(found.order.tolist())}
    readers, alive = lists(rank.readers), [0] * count
    homes = found.buffer.tolist()
    assert len(set(homes)) == len(homes)
    for buffer, begin, end in zip(homes, found.begin.tolist(), found.end.tolist(), strict=True):
        if buffers.reused[buffer]:
            assert begin == place[int(buffers.producer[buffer])]
        else:
            assert (begin, end) == (0, count - 1)
        merged = merged_chains(rank)
        inside = [r for r in readers[buffer] if merged[r] == merged[buffers.producer[buffer]]]
        assert end >= max([begin, *(place[reader] for reader in inside)])
        for n in range(begin, end + 1):
            alive[n] += int(buffers.size[buffer])
    if not rank.logical_chains:  # there two chains lie in one block
        assert max(alive) <= blocks(rank).size.sum()
    assert {n for row in lists(blocks(rank).alive) for n in row} <= set(homes)
