"""Graphs that read their data themselves are captured with what they read as inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoddl
from autoddl.errors import AutoDDLError
from tests.support.records import SUFFIX, write_records

pytestmark = pytest.mark.oneflow


def graph_of(folder: Path) -> Any:
    """Return a graph that decodes records, and returns the labels beside the loss."""
    import oneflow as flow

    write_records(folder, {name: np.ones((8, n)) for name, n in (("x", 4), ("y", 1))}, parts=2)

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.records = flow.nn.OFRecordReader(
                str(folder), batch_size=4, data_part_num=2, part_name_suffix_length=SUFFIX
            )
            self.x = flow.nn.OFRecordRawDecoder("x", (4,), dtype=flow.float32)
            self.y = flow.nn.OFRecordRawDecoder("y", (1,), dtype=flow.float32)
            self.model = flow.nn.Linear(4, 1)
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

        def build(self) -> Any:
            records = self.records()
            labels = self.y(records)
            loss = (self.model(self.x(records)) - labels).square().mean()
            loss.backward()
            return loss, labels

    return Train()


@pytest.mark.parametrize("built", [False, True])
def test_what_decoders_make_are_inputs(built: bool, tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    if built:
        graph.build_graph()
    program = autoddl.capture(graph)
    shapes = {name: program.tensor[name].shape for name in program.inputs}
    x, y = "read.x-ofrecord_raw_decoder-2/out_0", "read.y-ofrecord_raw_decoder-1/out_0"
    assert shapes == {x: (4, 4), y: (4, 1)}
    assert {program.tensor[name].role for name in shapes} == {"input"}
    assert program.outputs == (program.loss, y)
    assert not [op for op in program.ops if "ofrecord" in op.type.lower()]
    (product,) = (op for op in program.ops if op.type == "matmul" and op.phase == "forward")
    assert dict(product.inputs)["a_0"] == x


@pytest.mark.parametrize(
    "option", [{"micro_batches": 2}, {"duplex": True}, {"pipeline": 2, "micro_batches": 1}]
)
def test_parts_of_a_batch_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AutoDDLError, match="is what the graph reads itself, a whole batch at once"):
        autoddl.optimize(graph_of(tmp_path), mesh="2", **option)


def test_a_graph_that_is_called_with_inputs_still_needs_them() -> None:
    from experiments.models import mlp

    graph, _ = mlp.build()
    with pytest.raises(AutoDDLError, match="not built and no inputs given"):
        autoddl.capture(graph)
