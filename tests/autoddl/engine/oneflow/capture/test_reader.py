"""Capture reads the whole training step and leaves graph and model as they were."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from autoddl.errors import AutoDDLError
from autoddl.sbp.program import Program

pytestmark = pytest.mark.oneflow


def test_roles_phases_and_links_of_an_mlp() -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import mlp

    graph, inputs = mlp.build(widths=(16, 32, 8), batch=8, optimizer="adamw")
    program = capture(graph, *inputs)
    assert program.device == "cpu"
    assert [program.tensor[n].shape for n in program.inputs] == [(8, 16), (8, 8)]
    assert program.outputs == (program.loss,)
    assert program.tensor[program.loss].role == "loss"
    weight = next(p for p in program.parameters if p.tensor == "model.0.weight")
    assert program.tensor[weight.tensor].role == "parameter"
    assert weight.states == ("model.0.weight-m", "model.0.weight-v")
    assert {program.tensor[s].role for s in weight.states} == {"state"}
    gradient = program.tensor[weight.gradient]
    assert (gradient.role, gradient.shape) == ("gradient", (32, 16))
    assert program.op[weight.update].type == "adam_update"
    assert len(program.parameters) == 4
    forward = [op for op in program.ops if op.phase == "forward"]
    assert [op.type for op in forward if op.module == "model.0"] == ["matmul", "broadcast_add"]
    backward = {op.type for op in program.ops if op.phase == "backward"}
    assert {"gelu_grad", "matmul", "reduce_sum_like"} <= backward
    assert {op.phase for op in program.ops if op.type == "adam_update"} == {"optimizer"}


def test_ops_come_after_what_they_read() -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import gpt

    program = capture(*_flat(gpt.build(**gpt.SIZES["toy"])))
    seen: set[str] = set()
    for op in program.ops:
        made = {t for _, t in op.inputs if t in program.producer}
        assert made <= seen
        seen |= {t for _, t in op.outputs}


@pytest.mark.ranks
def test_capture_leaves_graph_and_model_as_they_were() -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import mlp
    from experiments.models.training import seed_weights

    losses = []
    for captured in (False, True):
        graph, inputs = mlp.build(optimizer="adam")
        model = graph.model.to(flow.nn.Module)
        seed_weights(model, 3)
        before = {name: p.numpy() for name, p in model.named_parameters()}
        if captured:
            capture(graph, *inputs)
            assert graph._full_job_proto is None
            assert all(p.grad is None and not p.is_global for p in model.parameters())
            for name, parameter in model.named_parameters():
                np.testing.assert_array_equal(parameter.numpy(), before[name])
        losses.append([float(graph(*inputs).numpy()) for _ in range(3)])
    assert losses[0] == losses[1]


@pytest.mark.ranks
def test_the_same_graph_has_the_same_fingerprint_built_run_saved_or_fresh(tmp_path: Path) -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import vgg

    graph, inputs = vgg.build(**{**vgg.SIZES["toy"], "batch": 2}, optimizer="adam")
    program = capture(graph, *inputs)
    assert capture(graph, *inputs).fingerprint == program.fingerprint
    graph(*inputs).numpy()
    assert capture(graph).fingerprint == program.fingerprint
    program.save(tmp_path / "program.json")
    loaded = Program.load(tmp_path / "program.json")
    assert loaded == program
    assert loaded.fingerprint == program.fingerprint
    wider, inputs = vgg.build(**{**vgg.SIZES["toy"], "batch": 2, "dense": 48}, optimizer="adam")
    assert capture(wider, *inputs).fingerprint != program.fingerprint


def test_updates_read_gradients_whatever_clips_them_or_adds_decay() -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import mlp

    def program(optimizer: str) -> Program:
        return capture(*_flat(mlp.build(widths=(16, 32, 8), batch=8, optimizer=optimizer)))

    for plain, clipped, decay in (("adam", "clipped_adam", 0.0), ("plain_sgd", "clipped_sgd", 0.1)):
        found = program(clipped)
        assert found.fingerprint == program(plain).fingerprint
        (told,) = found.groups
        assert (told.clip, told.weight_decay) == ((1.0, 2.0), pytest.approx(decay))


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("gpt", "adam"), ("vgg", "sgd"), *(("mlp", rule) for rule in ("plain_sgd", "adamw"))],
)
def test_every_op_of_the_models_has_a_rule(model: str, optimizer: str) -> None:
    from importlib import import_module

    from autoddl.engine.oneflow.capture.reader import capture
    from autoddl.planner.missing_rules import unknown_types

    module = import_module(f"experiments.models.{model}")
    program = capture(*_flat(module.build(**module.SIZES["toy"], optimizer=optimizer)))
    assert unknown_types(program) == {}
    assert all(p.update is not None for p in program.parameters)


def test_abstract_parameters_trace_the_same_graph_without_memory() -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.abstract import abstract_parameters
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import gpt

    real = capture(*_flat(gpt.build(**gpt.SIZES["toy"], optimizer="adam")))
    with abstract_parameters():
        graph, inputs = gpt.build(**gpt.SIZES["toy"], optimizer="adam")
    abstract = capture(graph, *inputs)
    assert abstract.fingerprint == real.fingerprint
    weights = dict(graph.model.to(flow.nn.Module).named_parameters())
    real_ones = [name for name, w in weights.items() if w.ndim > 1 and set(w.stride()) != {0}]
    assert real_ones == ["position"]  # zeros, of which masks and the like could be computed
    linear = flow.nn.Linear(3, 2)  # outside, everything is real again
    assert linear.weight.stride() == (3, 1)
    assert np.abs(linear.weight.numpy()).max() > 0


def test_a_graph_that_is_not_built_needs_inputs() -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import mlp

    graph, _ = mlp.build()
    with pytest.raises(AutoDDLError, match=r"not built and no inputs given; pass example inputs"):
        capture(graph)
    with pytest.raises(AutoDDLError, match=r"give an oneflow\.nn\.Graph"):
        capture(object())


@pytest.mark.ranks
def test_a_graph_that_has_run_on_each_of_several_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import mlp

    graph, inputs = mlp.build()
    graph(*inputs)
    capture(graph, *inputs)
    monkeypatch.setattr(flow.env, "get_world_size", lambda: 2)
    with pytest.raises(AutoDDLError, match="it has run on each rank alone"):
        capture(graph, *inputs)


def test_inputs_that_the_graph_cannot_take_are_one_line_and_nothing_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.reader import capture
    from experiments.models import mlp

    graph, (_, y) = mlp.build()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(AutoDDLError, match=r"can't trace it on these inputs") as caught:
        capture(graph, flow.ones(8, 7), y)
    (file,) = tmp_path.iterdir()
    found = str(caught.value)
    assert found.endswith(f"(7 vs 16), in InferTensorDesc4Matmul (more in {file})"), found
    assert "nn_functor.cpp" in file.read_text()
    shown = capfd.readouterr()
    assert shown.out == "" and "[ERROR]" in shown.err  # it is the engine that prints this


@pytest.mark.ranks
def test_a_graph_that_has_run_goes_on_with_what_its_optimizer_remembers() -> None:
    import oneflow as flow

    import autoddl
    from experiments.models import mlp
    from experiments.models.training import seed_weights

    losses = []
    for steps_before in (0, 2):
        graph, inputs = mlp.build(optimizer="adam")
        seed_weights(graph.model.to(flow.nn.Module), 3)
        found = [float(graph(*inputs).numpy()) for _ in range(steps_before)]
        step = autoddl.optimize(graph, *inputs, mesh="1").apply(graph)
        found += [float(step(*inputs).to_local().numpy()) for _ in range(5 - steps_before)]
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert len(set(losses[0])) == 5


@pytest.mark.ranks
def test_a_step_does_not_go_on_without_the_values_that_it_was_to_load() -> None:
    import autoddl
    from experiments.models import mlp

    graph, inputs = mlp.build()
    step = autoddl.optimize(graph, *inputs, mesh="1").apply(graph)
    step.load_state_dict({})
    for _ in range(2):
        with pytest.raises(AutoDDLError, match="state dict: it has no"):
            step(*inputs)


@pytest.mark.ranks
def test_optimize_on_one_device_is_trivial_and_applies() -> None:
    import oneflow as flow

    import autoddl
    from experiments.models import mlp
    from experiments.models.training import seed_weights

    graph, inputs = mlp.build()
    seed_weights(graph.model.to(flow.nn.Module), 3)
    plan = autoddl.optimize(graph, *inputs, mesh="1")
    assert plan.estimate.communication_s == 0.0
    step = plan.apply(graph)
    other, _ = mlp.build()
    seed_weights(other.model.to(flow.nn.Module), 3)
    for _ in range(3):
        assert float(step(*inputs).numpy()) == pytest.approx(
            float(other(*inputs).numpy()), abs=1e-6
        )


def _flat(built: tuple[object, tuple[object, ...]]) -> tuple[object, ...]:
    graph, inputs = built
    return (graph, *inputs)


def test_tracing_micro_batches_changes_nothing_for_other_graphs() -> None:
    """OneFlow's own method for them sets a variable of the process, and where boxings run."""
    import os

    from oneflow.framework import session_context

    from autoddl.engine.oneflow.capture.reader import traced_alone
    from experiments.models import mlp

    graph, inputs = mlp.build(widths=(16, 32, 8), batch=8)
    before = dict(os.environ)
    twin = traced_alone(graph, (inputs, {}), "cpu", micro_batches=4)  # of two rows each
    assert os.environ == before
    assert not session_context.GetDefaultSession().resource.nccl_use_compute_stream
    assert {op.user_conf.op_type_name for op in twin._full_job_proto.net.op} >= {"acc", "unpack"}
    assert graph.config.proto.num_gradient_accumulation_steps <= 1


def test_a_graph_that_accumulates_gradients_is_planned_for_the_time_of_a_step() -> None:
    import autoddl
    from experiments.models import mlp

    graph, inputs = mlp.build(widths=(16, 32, 8), batch=8)
    graph.config.proto.num_gradient_accumulation_steps = 2
    with pytest.raises(AutoDDLError, match=r"'communication' with 2 micro-batches, over which the"):
        autoddl.optimize(graph, *inputs, mesh="1", objective="communication")
