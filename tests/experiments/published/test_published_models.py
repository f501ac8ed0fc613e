"""What published rows train: parameters as published, flops and pipelines by closed forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.sbp.program import Program
from autoddl.sbp.rewrites.micro_batch import micro_batch
from autoddl.sbp.rules.registry import OpView, find
from experiments.lib.programs import captured
from experiments.published.published_plans import predicted
from experiments.published.published_rows import Degrees
from tests.support.model_sizes import parameters

pytestmark = pytest.mark.oneflow

LAYERS, WIDTH, SEQUENCE, VOCABULARY, BATCH = 4, 64, 32, 128, 16


@pytest.mark.parametrize(
    ("model", "sizes", "published"),
    [
        ("fused_transformer", {"sequence": 1024, "vocabulary": 50304}, 355e6),
        ("fused_transformer", {"sequence": 512, "vocabulary": 30522, "encoder": True}, 336e6),
    ],
)
def test_transformers_have_the_published_number_of_parameters(
    model: str, sizes: dict[str, int], published: float
) -> None:
    """Counted with one and two layers; the others add as much each."""
    one, two = (parameters(model, layers=n, width=1024, heads=16, batch=1, **sizes) for n in (1, 2))
    assert one + 23 * (two - one) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize("fused", [False, True])
def test_resnet_50_has_25_6_million_parameters(fused: bool) -> None:
    sizes = {"blocks": (3, 4, 6, 3), "channels": 64, "classes": 1000, "image": 32, "batch": 1}
    assert parameters("resnet", fused=fused, **sizes) == 25_557_032


def test_wide_and_deep_has_two_tables_of_as_many_rows() -> None:
    sizes = {"vocabulary": 1000, "width": 16, "layers": 3, "hidden": 1024, "dense": 13, "deep": 26}
    layers = (26 * 16 + 13 + 1) * 1024 + 2 * 1025 * 1024 + 1025
    assert parameters("wide_and_deep", **sizes, wide=2, batch=2) == 1000 * (1 + 16) + layers


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Return a small GPT in mixed precision."""
    file: Path = tmp_path_factory.mktemp("programs") / "gpt.json"
    return captured(
        file, "fused_gpt", "toy", "float16", samples=BATCH, loss_scale=True, layers=LAYERS,
        width=WIDTH, heads=4, sequence=SEQUENCE, vocabulary=VOCABULARY, batch=2,
    )  # fmt: skip


def test_products_take_the_flops_of_the_closed_form(program: Program) -> None:
    """Six for each weight of a product and token, and twelve for each pair of positions and feature.

    Source: Narayanan et al. 2021, §5.1 (without recomputation; the mask saves nothing).
    """
    flops = 0.0
    for op in program.ops:
        rule = find(op.type)
        if rule is not None and rule.family == "matmul":
            flops += rule.flops(OpView.of(op, program.shapes(op)))
    weights = 12 * LAYERS * WIDTH**2 + WIDTH * VOCABULARY
    pairs = 12 * LAYERS * SEQUENCE * WIDTH
    assert flops == pytest.approx(BATCH * SEQUENCE * (6 * weights + pairs))


def test_losses_are_scaled_and_the_batch_is_as_asked_for(program: Program) -> None:
    assert {program.tensor[name].shape for name in program.inputs} == {(BATCH, SEQUENCE)}
    assert any("LossScale" in tensor.name for tensor in program.tensors)


def test_a_pipeline_takes_its_micro_batches_and_its_bubble(program: Program) -> None:
    """Two stages of half the layers: (m + 1) / 2 times a micro-batch's seconds, beside what is sent."""
    profile = profiles.load("v100-8x", device_type="cuda")
    part = micro_batch(program, 4)
    alone = predicted(part, Degrees(1, 1, 1, 1, 1), 1, profile).step_s
    summed = predicted(part, Degrees(1, 1, 1, 1, 1), 4, profile).step_s
    halves = predicted(part, Degrees(1, 1, 2, 1, 2), 4, profile).step_s
    # Updates come once, but gradients of micro-batches are summed up.
    assert summed == pytest.approx(4 * alone, rel=0.1)
    assert summed / 2 < halves < summed  # half without a bubble; with that and transfers more


def test_data_parallelism_divides_the_compute_of_a_batch(program: Program) -> None:
    """Masks of dropout are cut, too: each device computes as one does with its part of the batch."""
    profile = profiles.load("v100-8x", device_type="cuda")
    part = predicted(micro_batch(program, 8), Degrees(1, 1, 1, 1, 1), 1, profile)
    whole = predicted(program, Degrees(8, 1, 1, 1, 8), 1, profile)
    assert whole.compute_s == pytest.approx(part.compute_s, rel=0.01)
