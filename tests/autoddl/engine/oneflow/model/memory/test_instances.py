"""Numbers of instances: those of templates, one behind the other."""

from __future__ import annotations

import numpy as np

from autoddl.engine.oneflow.model.memory.instances import Instances, order_of
from autoddl.engine.oneflow.model.memory.sizes import Dataflow
from autoddl.engine.oneflow.model.memory.task_graph import BITS, NONE
from autoddl.engine.oneflow.model.memory.task_templates import Templates
from autoddl.sbp.state import NdSbp
from tests.autoddl.engine.oneflow.model.memory.test_lowering import program_of
from tests.support.rows import lists


def test_two_instances_of_one_template_have_numbers_of_their_own() -> None:
    program, state = program_of("x", "t1"), NdSbp.parse("S1")
    templates = Templates((2,), (1,), lambda form, state: 1024, compute_stream=False)
    source = templates.source(0, state, merged=True)
    gather = templates.boxing(0, state, NdSbp.parse("B"))  # three tasks, three buffers
    output = templates.output(2048)
    # x, then ops 1 and 2 (as if they were outputs), with the same boxing before each of them
    added = np.array([
        (gather, 0, 0 << BITS, 0, order_of(2, 0)),
        (gather, 2, 1 << BITS, 1, order_of(2, 1)),
    ]).T  # fmt: skip
    rank = Instances(
        Dataflow(program),
        templates,
        kept=np.array([0]),
        chosen=np.array([source, output, output]),
        reads=np.array([(3 << BITS) + 2, (4 << BITS) + 2]),
        added=added,
        waits=np.array([[4], [1]]),
    ).tasks()
    assert lists(rank.tasks.reads) == [[], [0], [1], [2], [3], [4], [5], [6], [7]]
    assert rank.tasks.first.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert rank.buffers.origin.tolist() == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    names = [0, 0, 0, 0, 2, 2, 2, 2, 3]
    assert rank.buffers.name.tolist() == names
    after = [[]] * 5 + [[4], [], [], []]  # the second boxing waits for op 0
    assert lists(rank.tasks.after) == after
    assert (rank.tasks.shares == NONE).all()
    assert rank.tasks.order[4] == order_of(1, 0) and rank.tasks.order[8] == order_of(1, 1)
