"""TransGAN's generator: grids grow as upsampling does, windows are apart, AMP's size has its numbers."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from tests.support.model_sizes import shapes

pytestmark = pytest.mark.oneflow


def grid(batch: int, side: int, width: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(batch, side * side, width)).astype(np.float32)


def test_amps_size_has_as_many_parameters_as_its_layers() -> None:
    """151 million are the 12 h² of each block that AMP counts; it leaves out all others."""
    from experiments.models.transgan import SIZES

    found = {name: prod(s) for name, s in shapes("transgan", **SIZES["transgan"]).items()}
    blocks = [
        sum(found[name] for name in found if name.startswith(f"blocks.{number}."))
        for number in range(25)
    ]
    wide, narrow = (
        12 * w**2 + 5 * w + 4 * (2 * side - 1) ** 2 for w, side in ((1024, 9), (16, 18))
    )
    assert blocks == [wide] * 12 + [narrow] * 12 + [0]
    assert sum(blocks) == pytest.approx(12 * 12 * (1024**2 + 16**2), rel=1e-3)
    first, head = 513 * 81 * 1024, 17 * 3
    positions = 81 * 1024 + 18**2 * 1024 + 4 * 36**2 * 1024
    assert sum(found.values()) == sum(blocks) + first + head + positions


def test_amps_size_has_the_grids_of_its_stages() -> None:
    """What each stage adds its positions to: 9² tokens of width 1024 to 288² of width 16."""
    import autoddl
    from experiments.models import build

    few = {"depths": (1, 0, 0, 0, 0, 1), "batch": 2}  # blocks of a stage are alike
    with autoddl.abstract_parameters():
        graph, inputs = build("transgan", "transgan", **few)
    assert [tuple(x.shape) for x in inputs] == [(2, 512), (2, 3, 288, 288)]
    whole = autoddl.capture(graph, *inputs)
    grids = [whole.tensor[f"model.positions.{stage}.position"].shape for stage in range(6)]
    assert grids == [
        (9**2, 1024), (18**2, 1024), (36**2, 1024), (72**2, 256), (144**2, 64), (288**2, 16)
    ]  # fmt: skip
    made = [op.outputs[0][1] for op in whole.ops if op.type == "softmax"]
    attended = [whole.tensor[tensor].shape for tensor in made]
    assert attended == [(2, 4, 81, 81), (2 * 16 * 16, 4, 324, 324)]


def test_upsampling_is_that_of_images() -> None:
    import oneflow as flow

    from experiments.models.transgan import Repeated, Shuffled

    given = flow.tensor(grid(2, 3, 8))
    images = given.transpose(1, 2).reshape(2, 8, 3, 3)
    for grow, layer in ((Shuffled(), flow.nn.PixelShuffle(2)), (Repeated(), flow.nn.Upsample(
        scale_factor=2.0, mode="nearest"
    ))):  # fmt: skip
        expected = layer(images).flatten(2).transpose(1, 2).numpy()
        np.testing.assert_array_equal(grow(given).numpy(), expected)


def test_windows_are_squares_of_the_grid() -> None:
    import oneflow as flow

    from experiments.models.transgan import in_windows, out_of_windows

    given = grid(2, 6, 4)
    cut = in_windows(flow.tensor(given), 3)
    square = given.reshape(2, 6, 6, 4)
    for number, (sample, down, right) in enumerate(product(range(2), range(2), range(2))):
        window = square[sample, 3 * down : 3 * down + 3, 3 * right : 3 * right + 3]
        np.testing.assert_array_equal(cut.numpy()[number], window.reshape(9, 4))
    np.testing.assert_array_equal(out_of_windows(cut, 6).numpy(), given)


def test_ways_between_tokens_are_numbered() -> None:
    """Pairs have the same number where rows and columns between them are the same."""
    from experiments.models.transgan import relative_places

    places, seen = relative_places(3), {}
    for one, other in product(range(9), range(9)):
        way = one // 3 - other // 3, one % 3 - other % 3
        assert seen.setdefault(way, places[one, other]) == places[one, other]
    assert sorted(seen.values()) == list(range(25))


def test_a_token_changes_its_window_only() -> None:
    import oneflow as flow

    from experiments.models.training import seed_weights
    from experiments.models.transgan import Generator

    model = Generator(depths=(0, 2), kept=1, width=8, heads=4, side=3, window=3, latent=4)
    seed_weights(model, 0, scale=0.3)
    given = flow.tensor(np.random.default_rng(1).normal(size=(1, 4)).astype(np.float32))
    images = []
    for step in (0.0, 1.0):
        model.positions[1].position.data[0] += step  # of the first token of the first window
        images.append(model(given).numpy())
    moved = (np.abs(images[1] - images[0]) > 1e-6).any(axis=1)[0]
    assert moved[:3, :3].all()
    assert moved.sum() == 9
