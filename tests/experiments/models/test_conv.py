"""The convolutional models of the zoo: the engine traces and trains them, sizes are the papers'."""

from __future__ import annotations

import importlib
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from autoddl.sbp.numpy_oracle.simulated_program import run_program
from tests.support.eager_steps import eager_losses
from tests.support.model_sizes import parameters

pytestmark = pytest.mark.oneflow

TOYS: dict[str, tuple[str, dict[str, Any]]] = {
    "alexnet": ("alexnet", {}),
    "vgg": ("vgg", {}),
    "resnet": ("resnet", {"blocks": (1, 1)}),
    "basic resnet": ("resnet", {"basic": True}),
    "mobilenet": ("mobilenet", {}),
    "unet with norm": ("unet", {"norm": True, "depth": 1}),
}
BLOCK_OPS = {
    "alexnet": {"conv2d", "max_pool_2d_grad"},
    "vgg": {"conv2d", "max_pool_2d_grad"},
    "resnet": {"normalization", "normalization_grad", "adaptive_avg_pool2d_grad", "add_n"},
    "basic resnet": {"normalization_grad", "max_pool_2d_grad", "add_n"},
    "mobilenet": {"hardtanh", "normalization_grad", "add_n"},
    "unet with norm": {
        "deconv2d", "concat", "split_like", "max_pool_2d", "normalization_grad",
    },
}  # fmt: skip
# Millions of parameters, running statistics left out, as the papers or torchvision count them.
MILLIONS = {
    ("alexnet", "alexnet"): 61.1,
    ("vgg", "vgg13"): 133.0,
    ("vgg", "vgg19"): 143.7,
    ("vgg", "vgg19_million"): 4236.6,
    ("resnet", "resnet18"): 11.7,
    ("resnet", "resnet50"): 25.6,
    ("resnet", "wide_resnet50_2"): 68.9,
    ("resnet", "wide_resnet_250m"): 254.0,
    ("unet", "unet"): 31.0,
    ("mobilenet", "mobilenet_v2"): 3.5,
}


def build(model: str, **sizes: Any) -> Any:
    return importlib.import_module(f"experiments.models.{model}").build(**sizes)


def size_of(model: str, name: str) -> dict[str, Any]:
    return importlib.import_module(f"experiments.models.{model}").SIZES[name]


@pytest.mark.parametrize(
    ("toy", "optimizer"), list(zip(TOYS, cycle(["sgd", "adam"]), strict=False))
)
def test_toys_are_traced_and_learn_what_the_rules_say(toy: str, optimizer: str) -> None:
    import oneflow as flow

    from autoddl.engine.oneflow.capture.reader import capture
    from autoddl.engine.oneflow.capture.shadow import modules
    from autoddl.sbp.rules import registry

    flow.manual_seed(0)
    model, more = TOYS[toy]
    graph, inputs = build(model, **{**size_of(model, "toy"), **more}, optimizer=optimizer)
    program = capture(graph, *inputs)
    assert program.loss is not None
    assert program.outputs == (program.loss,)
    assert len(program.ops) <= 250
    types = {op.type for op in program.ops}
    assert types >= BLOCK_OPS[toy]
    assert {op_type for op_type in types if registry.find(op_type) is None} == set()
    variables = {f"model.{n}": t.numpy() for n, t in modules(graph)[0].state_dict().items()}
    values = dict(zip(program.inputs, (x.numpy() for x in inputs), strict=True))
    in_numpy = run_program(program, variables | values)[program.loss]
    losses = eager_losses(graph, inputs, 3, optimizer)
    assert np.isfinite(losses).all()
    assert losses[2] < losses[0]
    assert losses[0] == pytest.approx(float(in_numpy), rel=1e-5)


@pytest.mark.parametrize(("model", "name"), MILLIONS, ids=lambda part: str(part))
def test_whole_sizes_have_the_papers_numbers_of_parameters(model: str, name: str) -> None:
    count = parameters(model, **{**size_of(model, name), "batch": 1})
    assert round(count / 1e6, 1) == MILLIONS[model, name]


def test_running_statistics_are_buffers_that_capture_leaves_alone() -> None:
    from autoddl.engine.oneflow.capture.reader import capture
    from autoddl.engine.oneflow.capture.shadow import modules

    graph, inputs = build("resnet", **size_of("resnet", "toy"))
    buffers = list(modules(graph)[0].buffers())
    before = [buffer.numpy().copy() for buffer in buffers]
    program = capture(graph, *inputs)
    for buffer, old in zip(buffers, before, strict=True):
        np.testing.assert_array_equal(buffer.numpy(), old)
    means = [p for p in program.parameters if p.tensor.endswith("running_mean")]
    assert len(means) == sum(op.type == "normalization" for op in program.ops) == 12
    for mean in means:
        assert program.tensor[mean.tensor].role == "buffer"
        assert (mean.update, mean.gradient, mean.states) == (None, None, ())


def test_mobilenets_convolve_each_channel_by_itself() -> None:
    from autoddl.engine.oneflow.capture.reader import capture

    graph, inputs = build("mobilenet", **size_of("mobilenet", "toy"))
    program = capture(graph, *inputs)
    groups = {
        program.tensor[dict(op.inputs)["in_0"]].shape[1]: op.attr["groups"]
        for op in program.ops
        if op.type == "conv2d" and op.attr["groups"] > 1
    }
    assert groups == {8: 8, 16: 16}
