"""Plans with stages on real ranks: the numbers of one process that accumulates gradients in a loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.autoddl.engine.oneflow.run.pipeline_cases import CASES
from tests.support.on_ranks import Launched, seen_by

pytestmark = [pytest.mark.oneflow, pytest.mark.ranks]

RANKS = {name: ranks for ranks, cases in CASES.items() for name in cases}
SMOKE = ("two", "two, gathered")
EVERY = [pytest.param(n, marks=pytest.mark.smoke if n in SMOKE else ()) for n in RANKS]


class Seen:
    """What the ranks saw of one case, and the weights that its stages and the reference have."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.ranks = seen_by(ranks, folder)
        self.reference = self.ranks[0]["reference"]
        self.weights: dict[str, Any] = {}
        for path in sorted(folder.glob("stage*.npz")):
            found = np.load(path)
            assert not set(found) & set(self.weights), "a variable in two stages"
            self.weights |= {name: found[name] for name in found}
        self.expected = dict(np.load(folder / "reference.npz"))


@pytest.fixture
def seen(launched: Launched) -> Callable[[str], Seen]:
    """Return what gives the results of a case."""

    def results(name: str) -> Seen:
        ranks = RANKS[name]
        case = json.dumps(CASES[ranks][name])
        return Seen(launched("pipelines", case, ranks=ranks), ranks)

    return results


@pytest.mark.parametrize("name", EVERY)
def test_losses_are_those_of_one_process(seen: Callable[[str], Seen], name: str) -> None:
    found = seen(name)
    expected = found.reference["losses"]
    assert expected[0] - expected[-1] > 0.01  # or nothing is learnt, and nothing compared
    for rank in found.ranks:
        assert len(rank["losses"]) == 5
        assert rank["losses"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_trained_weights_are_those_of_one_process(seen: Callable[[str], Seen], name: str) -> None:
    found = seen(name)
    assert set(found.weights) == set(found.expected)
    for weight, expected in found.expected.items():
        if not weight.endswith("num_batches_tracked"):  # which graphs of OneFlow leave at 0
            np.testing.assert_allclose(
                found.weights[weight], expected, rtol=0, atol=1e-5, err_msg=weight
            )


@pytest.mark.parametrize("name", EVERY)
def test_the_engine_executes_every_planned_signature(
    seen: Callable[[str], Seen], name: str
) -> None:
    assert all(rank["changed"] == [] for rank in seen(name).ranks)


def _crossings(found: Seen) -> list[tuple[str, int, int]]:
    """Return what goes between stages: its op or name, from where, to where."""
    stages = found.ranks[0]["stages"]
    return [(name, stages[name], target) for name, target in found.ranks[0]["transfers"]]


@pytest.mark.parametrize("name", ["two", "unet made again", "gpt cut anywhere"])
def test_every_stage_has_ops_and_results_go_on(seen: Callable[[str], Seen], name: str) -> None:
    found = seen(name)
    count = CASES[RANKS[name]][name]["pipeline"]
    assert set(found.ranks[0]["stages"].values()) == set(range(count))
    pairs = {(source, target) for _, source, target in _crossings(found)}
    assert {(i, i + 1) for i in range(count - 1)} <= pairs
    assert {(i + 1, i) for i in range(count - 1)} <= pairs


@pytest.mark.smoke
def test_parameters_are_gathered_in_turn(seen: Callable[[str], Seen]) -> None:
    waiting = seen("two, gathered").ranks[0]["gathered in turn"]
    assert waiting == 6 - 2  # of the parameters all but the first of each stage


@pytest.mark.parametrize("name", ["towers in free stages", "unet in another order"])
def test_stages_need_not_be_in_the_order_of_capture(seen: Callable[[str], Seen], name: str) -> None:
    found = seen(name).ranks[0]
    forward = [found["stages"][op] for op in found["forward"]]
    assert forward != sorted(forward)


def test_skips_of_a_unet_go_past_stages(seen: Callable[[str], Seen]) -> None:
    crossings = _crossings(seen("unet made again"))
    assert any(target - source > 1 for _, source, target in crossings)


def test_cuts_inside_of_layers_send_several_tensors(seen: Callable[[str], Seen]) -> None:
    crossings = _crossings(seen("gpt cut anywhere"))
    assert len([name for name, source, target in crossings if (source, target) == (1, 2)]) > 1


def test_a_tied_weight_goes_to_the_stage_that_reads_it_too(seen: Callable[[str], Seen]) -> None:
    assert ("model.token.weight", 0, 1) in _crossings(seen("tied on 2 and 2x2"))


@pytest.mark.parametrize("name", ["unet made again", "norm made again", "gpt cut anywhere"])
def test_forward_results_are_made_again_in_these_stages(
    seen: Callable[[str], Seen], name: str
) -> None:
    from autoddl.engine.oneflow.job.stage_writer import AGAIN

    found = seen(name)
    wanted = CASES[RANKS[name]][name]["recomputed"]
    stage = found.ranks[0]["stages"]
    originals = [op.removeprefix(AGAIN) for op in found.ranks[0]["again"]]
    assert {stage[op] for op in originals if op in stage} == set(wanted)
    behind = found.ranks[0]["behind again"]  # gradients: an update must not come between
    assert behind and {stage[op] for op in behind} <= set(wanted)


def test_one_stage_only_accumulates(seen: Callable[[str], Seen]) -> None:
    assert _crossings(seen("two in one stage")) == []


def test_what_else_a_graph_returns_is_that_of_all_micro_batches(
    seen: Callable[[str], Seen],
) -> None:
    found = seen("scored on 1, 2 and 1")
    for name in ("made", "size"):  # on the stage that makes them
        (given,) = (rank[name] for rank in found.ranks if name in rank)
        np.testing.assert_allclose(given, found.reference[name], rtol=1e-5, atol=1e-5)


def test_dropout_draws_the_masks_of_one_device(launched: Launched) -> None:
    folders = [launched("pipeline_dropout", ranks=ranks) for ranks in (1, 2, 4)]
    found = [json.loads((folder / "seen.json").read_text()) for folder in folders]
    assert found[1]["stages"] == {"model.1-dropout-2": 0, "model.4-dropout-6": 1}
    assert sorted(found[2]["stages"].values()) == [0, 1]  # each draws the mask that both have
    assert len(set(found[0]["losses"])) == 4
    for seen in found[1:]:
        assert seen["losses"] == pytest.approx(found[0]["losses"], abs=1e-6)
