"""Updates of the rows that a batch has looked up are ops of the program."""

from __future__ import annotations

from typing import Any

import pytest

import autoddl
from autoddl.errors import AutoDDLError

pytestmark = pytest.mark.oneflow


def graph_of(optimizer: str) -> Any:
    """Return a graph of an embedding and a linear layer with sparse updates."""
    import oneflow as flow

    make = {
        "sgd": lambda p: flow.optim.SGD(p, lr=0.1),
        "momentum": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: flow.optim.Adam(p, lr=0.1),
    }[optimizer]

    class Train(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = flow.nn.Sequential(flow.nn.Embedding(32, 8), flow.nn.Linear(8, 4))
            self.add_optimizer(make(self.model.parameters()), is_sparse=True)

        def build(self, ids: Any) -> Any:
            loss = self.model(ids).mean()
            loss.backward()
            return loss

    return Train()


def ids() -> Any:
    import oneflow as flow

    return flow.zeros(8, 2, dtype=flow.int64)


@pytest.mark.parametrize(
    ("optimizer", "states"), [("sgd", set()), ("momentum", {"momentum"}), ("adam", {"m", "v"})]
)
def test_they_read_indices_and_values(optimizer: str, states: set[str]) -> None:
    program = autoddl.capture(graph_of(optimizer), ids())
    (op,) = (op for op in program.ops if op.type == f"indexed_slices_{optimizer}_update")
    operands = dict(op.inputs)
    assert operands["model_0"] == "model.0.weight"
    assert operands["model_diff_indices_0"] == "input.0.0"
    assert program.tensor[operands["model_diff_values_0"]].shape == (8, 2, 8)
    assert {name for name in ("momentum", "m", "v") if f"{name}_0" in operands} == states
    assert op.phase == "optimizer"
    assert program.parameter["model.0.weight"].update is None  # it is no update of the whole
    assert program.parameter["model.1.weight"].update == "model.1.weight_optimizer"


def test_they_come_after_what_reads_the_table() -> None:
    program = autoddl.capture(graph_of("sgd"), ids())
    before, after = program.precedence
    names = [op.name for op in program.ops]
    (update,) = (i for i, op in enumerate(program.ops) if op.type.startswith("indexed_slices"))
    assert "gather" in {program.op[names[i]].type for i in before[after == update].tolist()}


ONE_PART = r"by rows \(is_sparse=True.*plan with pipeline=1 and micro_batches=1"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"mesh": "2x2"},
            r"indexed_slices_adam_update on meshes of one axis.*plan with mesh=\"4\"",
        ),
        ({"mesh": "2", "micro_batches": 2}, ONE_PART),
        ({"mesh": "1", "pipeline": 2, "micro_batches": 1}, ONE_PART),
        ({"mesh": "2", "duplex": True}, "indexed_slices_adam_update.*plan with duplex=False"),
    ],
)
def test_what_the_engine_can_not_run_is_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(AutoDDLError, match=line):
        autoddl.optimize(graph_of("adam"), ids(), **options)


def test_a_table_has_the_state_of_its_update() -> None:
    program = autoddl.capture(graph_of("sgd"), ids())
    for state in ("S0", "B"):
        plan = autoddl.optimize(program, mesh="2", pin={"model.0.weight": state})
        (update,) = (op.name for op in program.ops if op.type.startswith("indexed_slices"))
        assert str(plan.variables["model.0.weight"]) == f"({state})"
        assert plan.signatures[update]["model_0"] == plan.variables["model.0.weight"]
