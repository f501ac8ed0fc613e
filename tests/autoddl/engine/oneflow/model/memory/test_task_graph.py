"""Who reads and waits for what, against plain loops."""

from __future__ import annotations

from hypothesis import given

from autoddl.engine.oneflow.model.memory.lowering import rank_tasks
from autoddl.engine.oneflow.model.memory.task_graph import NONE, RankTasks
from autoddl.sbp.layout import Layout
from autoddl.sbp.program import Op, Program, Tensor
from autoddl.sbp.state import broadcast
from tests.autoddl.engine.oneflow.model.memory.graphs import task_graphs
from tests.support.rows import lists


@given(task_graphs())
def test_readers_and_what_tasks_wait_for(rank: RankTasks) -> None:
    reads, after = lists(rank.tasks.reads), lists(rank.tasks.after)
    readers: list[list[int]] = [[] for _ in range(len(rank.buffers))]
    for task, mine in enumerate(reads):
        for buffer in dict.fromkeys(mine):
            readers[buffer].append(task)
    assert lists(rank.readers) == readers
    producer = rank.buffers.producer.tolist()
    for task, before in enumerate(lists(rank.before)):
        assert before == list(dict.fromkeys([*(producer[b] for b in reads[task]), *after[task]]))
        assert all(other < task for other in before)


@given(task_graphs())
def test_the_columns_fit_each_other(rank: RankTasks) -> None:
    tasks, buffers = rank.tasks, rank.buffers
    first = tasks.first.tolist()
    assert len(first) == len(tasks) + 1 and first[-1] == len(buffers)
    for task in range(len(tasks)):
        assert buffers.producer[first[task] : first[task + 1]].tolist() == [task] * (
            first[task + 1] - first[task]
        )
    assert (buffers.size % 512 == 0).all() and (buffers.size >= 0).all()
    shared = tasks.shares != NONE
    reads = lists(rank.tasks.reads)
    assert all(tasks.shares[n] in reads[n] for n in shared.nonzero()[0])
    moved = buffers.origin != range(len(buffers))
    assert tasks.transfer[buffers.producer[moved]].all()  # only boxings make one of another


def test_a_task_that_reads_a_buffer_twice_is_its_reader_once() -> None:
    square = Op("op", "broadcast_mul", (("x_0", "x"), ("y_0", "x")), (("z_0", "t"),))
    tensors = [Tensor(name, (8, 8), "float32", "activation") for name in ("x", "t")]
    program, b = Program((square,), tuple(tensors), ("x",), ("t",), (), None), broadcast(1)
    layout = Layout.of(program, {"op": dict.fromkeys(("x_0", "y_0", "z_0"), b)}, {}, {"x": b})
    rank = rank_tasks((1,), layout)
    assert lists(rank.tasks.reads) == [[], [0, 0], [1]]
    assert (lists(rank.readers), lists(rank.before)) == ([[1], [2], []], [[], [0], [1]])
