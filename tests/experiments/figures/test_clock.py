"""Plans on the clock: ratios, the order of runs and what is kept of them, bars, one run on ranks."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.profile_entries import Device, Kernel
from experiments.fidelity import measure
from experiments.fidelity.workload import Bed, core_share
from experiments.figures.clock import __main__ as clock
from experiments.figures.clock import clock_report, clock_runs
from experiments.figures.clock.clock_runs import ALONE, SHAPED, ClockRuns
from experiments.figures.clock.clock_workloads import PACE, SHAPES, WORKLOADS, ClockWorkload
from experiments.figures.clock.contestants import OURS, Contestant, contestants
from experiments.figures.clock.link_rates import TIMES, link_rate
from experiments.figures.clock.ratios import geometric_mean, median_s, ratio
from experiments.lib import cli, ranks
from experiments.lib.frames import RowStore
from experiments.lib.programs import captured
from tests.support.clusters import cluster
from tests.support.on_ranks import RankGroups
from tests.support.programs import mlp

TWO = Bed("two", 1, 2, None)
TOY = ClockWorkload("fig09", "mlp", "mlp", 2, 1, {})
PLANS = [Contestant((OURS,), "[2]", Path("ours.json")), Contestant(("OneFlow",), "2")]


def test_a_ratio_has_an_interval() -> None:
    assert median_s([[1.0, 1.2, 5.0], [3.0], [2.0]]) == 2.0
    assert tuple(ratio([[2.0, 2.0]] * 3, [[1.0]] * 3)) == (2.0, 2.0, 2.0)  # nothing to draw
    # A plan that takes 1 or 2 s by turns: its median of three passes is 2 in 7 of 27 draws, if two of
    # three passes are slow or more; so both are in the interval.
    found = ratio([[1.0], [1.0], [2.0]], [[1.0]] * 3)
    assert tuple(found) == (1.0, 1.0, 2.0)
    # Passes are pairs: a slow phase of the machine that hits both leaves the ratio as it is.
    assert tuple(ratio([[2.0], [4.0], [6.0]], [[1.0], [2.0], [3.0]])) == (2.0, 2.0, 2.0)
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert np.isnan(geometric_mean([]))
    # Rounds are pairs, too.
    assert tuple(ratio([[2.0, 4.0, 6.0]] * 2, [[1.0, 2.0, 3.0]] * 2)) == (2.0, 2.0, 2.0)
    # The steps of one pass do not say how passes differ.
    value, *interval = ratio([[2.0, 4.0, 2.0]], [[1.0]])
    assert value == 2.0 and np.isnan(interval).all()


def test_an_interval_covers_the_true_ratio() -> None:
    rng, inside = np.random.default_rng(1), 0
    for seed in range(40):
        mine, other = (rng.lognormal(np.log(s), 0.1, (7, 9)).tolist() for s in (1.0, 1.5))
        found = ratio(other, mine, seed)
        inside += found.low <= 1.5 <= found.high
    assert inside >= 38


def _instead_of_ranks(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "running", lambda _: nullcontext((run, None)))


def _runs(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: Any) -> tuple[ClockRuns, list[Any]]:
    """Return runs without ranks: each step takes a second, or a plan dies where `fails` says so."""
    calls: list[Any] = []

    def run(_: str, words: list[str], __: float) -> str:
        job = json.loads(words[0])
        names = [one["plan"] for one in job["plans"]]
        calls.append((job["key"]["links"], job["key"]["pass"], names, job["rounds"]))
        for name in names:
            Path(job["running"]).write_text(name)
            if fails(job["key"], name, len(calls)):
                return "rank 1 died"
        for name in names:
            samples = {"samples_s": [1.0] * job["rounds"]} if job["rounds"] else {}
            RowStore(Path(job["result"])).add(
                {**job["key"], "plan": name, "losses": [4.0], **samples}
            )
        return ""

    _instead_of_ranks(run, monkeypatch)
    runs = ClockRuns(TOY, 9, folder, rounds=3, passes=2)
    runs.carry_out(PLANS, TWO, lambda _: None)
    return runs, calls


BOTH = [OURS, "OneFlow"]


def test_plans_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, calls = _runs(tmp_path, monkeypatch, lambda *_: False)
    assert calls == [(ALONE, 0, [ALONE], 0), (SHAPED, 1, BOTH, 3), (SHAPED, 2, BOTH, 3)]
    assert runs.samples(OURS) == {(1, 0): [1.0] * 3, (2, 0): [1.0] * 3} and not runs.missing(PLANS)
    assert runs.of(OURS) == {"loss_error": 0.0, "failed": 0, "error": ""}
    more = ClockRuns(TOY, 9, tmp_path, rounds=3, passes=3)  # goes on
    assert more.missing(PLANS)
    assert [each[:2] for each in more._left(PLANS) if each[2]] == [(SHAPED, (3, 0))]
    other = ClockRuns(TOY, 9, tmp_path, rounds=4, passes=2)
    assert all(plans for _, _, plans in other._left(PLANS))


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["--quick"], ["vgg13-2x2", "bert_sgmoe-2x2"]),
        (["--quick", "--workloads", "t5,vgg13", "--beds", "2x2"], ["vgg13-2x2", "t5-2x2"]),
        (["--workloads", "llama"], ["llama-2x2"]),
        (["--beds", "2x4"], ["vgg13-2x4", "transformer-2x4"]),
    ],
)
def test_workloads_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], keys: list[str]
) -> None:
    run: list[str] = []

    def rows(one: ClockWorkload, *_: Any, **__: Any) -> list[Any]:
        run.append(one.key)
        return []

    monkeypatch.setattr(clock, "calibrated", lambda *_, **__: (Bed("bed", 2, 2, None), "profile"))
    monkeypatch.setattr(clock, "rows", rows)
    assert cli.run(clock.command, "figures.clock", [*words, "--folder", str(tmp_path)]) == 0
    assert run == keys


def test_a_workload_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--workloads", "llama", "--beds", "4x1", "--folder", str(tmp_path)]
    assert cli.run(clock.command, "figures.clock", words) == 2
    assert "no workload has all of these; there are vgg13-2x1 (fig09), " in capsys.readouterr().err


def test_many_plans_of_many_ranks_run_in_sets_with_ours(tmp_path: Path) -> None:
    others = [Contestant((str(number),), "[2]") for number in range(5)]
    wide = ClockWorkload("fig09", "mlp", "mlp", 4, 2, {})
    runs = ClockRuns(wide, clock_runs.OPS // 8 // 3, tmp_path, rounds=3, passes=1)
    sets = [(t, [p.key for p in plans]) for links, t, plans in runs._left([PLANS[0], *others])]
    assert sets == [
        ((0, 0), [ALONE]), ((1, 0), [OURS, "0", "1"]), ((1, 1), [OURS, "2", "3"]),
        ((1, 2), [OURS, "4"]),
    ]  # fmt: skip
    for turn, step_s, name in (((1, 0), 1.0, OURS), ((1, 1), 2.0, OURS), ((1, 1), 6.0, "2")):
        row = {"plan": name, "losses": [1.0], "samples_s": [step_s]}
        runs.kept.add({**runs._key(SHAPED, turn), **row})
    found = clock_report.rows(wide, "4x2", [others[2]], runs, "profile")
    assert found[0]["ratio"] == 3.0 and found[0]["passes_s"] == [6.0]


def test_a_pass_that_dies_is_repeated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def second(key: dict[str, Any], name: str, number: int) -> bool:
        return key["pass"] == 2 and name == OURS and number == 3

    runs, calls = _runs(tmp_path, monkeypatch, second)
    assert calls[-1] == calls[-2] and runs.samples(OURS).keys() == {(1, 0), (2, 0)}
    assert runs.of(OURS)["failed"] == 1 and runs.of(OURS)["error"] == ""
    assert runs.of("OneFlow")["failed"] == 0


def test_a_plan_that_always_dies_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, calls = _runs(tmp_path, monkeypatch, lambda key, name, _: name == "OneFlow")
    assert runs.samples("OneFlow") == {} and not runs.missing(PLANS)
    assert runs.of("OneFlow")["error"] == "rank 1 died" and runs.of("OneFlow")["failed"] == 2
    assert [(links, names) for links, _, names, *_ in calls] == [
        (ALONE, [ALONE]), (SHAPED, BOTH), (SHAPED, BOTH), (SHAPED, [OURS]), (SHAPED, [OURS]),
    ]  # fmt: skip


def test_where_no_plan_was_begun_all_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _instead_of_ranks(lambda *_: "no ranks", monkeypatch)
    runs = ClockRuns(TOY, 9, tmp_path, rounds=3, passes=1)
    runs.carry_out(PLANS, TWO, lambda _: None)
    assert [runs.of(one.key)["failed"] for one in PLANS] == [2, 2] and not runs.missing(PLANS)


def test_ratios_are_of_the_passes_that_both_have(tmp_path: Path) -> None:
    runs = ClockRuns(TOY, 9, tmp_path, rounds=3, passes=2)
    for plan, seconds in ((OURS, {1: 1.0, 2: 3.0, 3: 3.0}), ("OneFlow", {2: 6.0, 3: 6.0})):
        for number, step_s in seconds.items():
            key = runs._key(SHAPED, (number, 0))
            runs.kept.add({**key, "plan": plan, "losses": [1.0], "samples_s": [step_s]})
    peer = PLANS[1]
    (row,) = clock_report.rows(TOY, "2x1", [peer], runs, "profile")
    assert (row["ratio"], row["low"], row["high"]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("losses", "ratio"), [([4.0, 2.0], 2.0), ([4.0, 2.1], None)])
def test_plans_that_train_something_else_are_not_compared(
    tmp_path: Path, losses: list[float], ratio: float | None
) -> None:
    runs = ClockRuns(TOY, 9, tmp_path, rounds=3, passes=1)
    runs.kept.add({**runs._key(ALONE, (0, 0)), "plan": ALONE, "losses": [4.0, 2.0]})
    for plan, step_s, own in ((OURS, 1.0, [4.0, 2.0]), ("OneFlow", 2.0, losses)):
        key = runs._key(SHAPED, (1, 0))
        runs.kept.add({**key, "plan": plan, "losses": own, "samples_s": [step_s]})
    (row,) = clock_report.rows(TOY, "2x1", [PLANS[1]], runs, "profile")
    assert row.get("ratio") == ratio and row["measured_s"] == 2.0


def _row(workload: str, plan: str, predicted_s: float, measured_s: float, ours_s: float) -> Any:
    return {
        "figure": "fig09", "workload": workload, "plan": plan, "mesh": "[2]", "error": "",
        "predicted_s": predicted_s, "compute_s": 0.6 * predicted_s, "bound_s": 0.5,
        "communication_s": 0.4 * predicted_s, "measured_s": measured_s, "loss_error": 0.0,
        "ratio": measured_s / ours_s, "low": 1.0, "high": 1.1, "passes_s": [measured_s],
    }  # fmt: skip


def test_bars_of_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [
        _row("a", "ours", 1.0, 1.0, 1.0), _row("a", "data parallel", 3.0, 3.0, 1.0),
        _row("a", "Megatron", 2.0, 2.0, 1.0), _row("a", "OneFlow", 2.5, 2.5, 1.0),
        _row("b", "ours, Megatron", 1.1, 1.1, 1.1), _row("b", "data parallel", 2.2, 2.2, 1.1),
    ]  # fmt: skip
    assert clock_report.report(pd.DataFrame(good), tmp_path, {}) is None
    facts = json.loads((tmp_path / "clock.json").read_text())
    assert facts["bandwidth_bound"] == ["a", "b"] and facts["missed"] == []
    said = {row["over"]: row["mean"] for row in facts["means"]}
    assert said["data parallel"] == pytest.approx((3 * 2) ** 0.5)
    assert said["the best expert"] == pytest.approx((2 * 1) ** 0.5)
    assert said["OneFlow's auto-parallel"] == pytest.approx(2.5)
    expert = facts["means"][0]  # predicted 2.0 and 1.1 s, ours 1.0 and 1.1 s, both bounds 0.5 s
    assert expert["predicted"] == pytest.approx((2 * 1) ** 0.5)
    assert expert["most"] == pytest.approx((4 * 2.2) ** 0.5)
    monkeypatch.setattr(clock_report, "draw", lambda *_: None)  # once is enough
    bad = [*good, _row("b", "SUMMA", 1.2, 1.0, 1.1)]
    assert clock_report.report(pd.DataFrame(bad), tmp_path, {}) == cli.MISSED
    assert "missed: b: SUMMA is faster, 1.100 times (bar 1.03)" in capsys.readouterr().out


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    clock.check_folder(tmp_path)
    clock.check_folder(tmp_path)
    file = tmp_path / "made_with.json"
    file.write_text(file.read_text().replace('"numpy": "', '"numpy": "0.'))
    with pytest.raises(
        AutoDDLError, match="results of other versions than here; delete the folder"
    ):
        clock.check_folder(tmp_path)


@pytest.mark.parametrize(
    ("ranks", "cores", "share"),
    [(2, 2, None), (4, 16, None), (4, 2, "0.45"), (8, 2, "0.225"), (3, 2, "0.45"), (8, 3, "0.3")],
)
def test_ranks_that_are_more_than_the_cores_have_equal_shares(
    ranks: int, cores: int, share: str | None
) -> None:
    """Three ranks on two cores: two are on one, so each gets as much as where there are four."""
    assert core_share(ranks, cores) == share


def test_without_a_testbed_steps_are_predicted(tmp_path: Path) -> None:
    rows = [_row("a", "ours", 1.0, 1.0, 1.0), _row("a", "OneFlow", np.nan, 1.0, 1.0)]
    measured = ("measured_s", "ratio", "low", "high", "passes_s")
    known = [{k: v for k, v in row.items() if k not in measured} for row in rows]
    assert clock_report.report(pd.DataFrame(known), tmp_path, {"bed": "no root"}) is None
    facts = json.loads((tmp_path / "clock.json").read_text())
    assert facts["not_measured"] == {"bed": "no root"} and facts["scores"] == {}
    assert (tmp_path / "fig09.svg").exists()


@pytest.mark.oneflow
@pytest.mark.ranks
def test_plans_and_auto_parallel_train_alike_on_ranks(
    tmp_path: Path, on_ranks: RankGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "started", on_ranks.started)
    workload = ClockWorkload("fig09", "mlp", "mlp", 1, 2, {"widths": [16, 64, 8], "batch": 8})
    program = captured(tmp_path / "program.json", "mlp", "toy", **workload.sizes)
    profile = tmp_path / "profile.json"
    cluster().save(profile)
    every = contestants(workload, program, str(profile), tmp_path / "plans")
    plans = [one for one in every if one.key in (OURS, "OneFlow")]
    assert len(plans) == 2 and len(every) > 2
    runs = ClockRuns(workload, 9, tmp_path, rounds=2, passes=1)
    runs.carry_out(plans, TWO, lambda _: None)
    for one in plans:
        found = runs.of(one.key)
        assert found["error"] == "" and found["loss_error"] < 1e-5
        assert len(runs.samples(one.key)[1, 0]) == 2
    losses = runs.kept.having(plan=ALONE)[0]["losses"]
    assert losses[0] != losses[-1]  # it does train


def test_names_of_workloads_are_unlike() -> None:
    assert len({one.key for one in WORKLOADS}) == len(WORKLOADS)


def test_every_testbed_has_the_workload_that_tells_its_rate() -> None:
    for shape in SHAPES:
        assert sum(one.name == PACE and one.shape == shape for one in WORKLOADS) == 1


@pytest.mark.parametrize("op_s", [1e-3, 2e-3])
def test_links_are_as_slow_as_ranks_compute(op_s: float) -> None:
    program = mlp(8, (512, 2048, 512))
    kernel = Kernel(op_s, 1e24, {"float32": 1e24})
    families = ("matmul", "elementwise", "memory", "reduction", "optimizer")
    device = Device("ops alike", 1 << 30, {"float32": 1e24}, 1e24, op_s,
                    dict.fromkeys(families, kernel))  # fmt: skip
    rate = float(link_rate(program, 4, device).removesuffix("mbit"))
    gradients = 4 * (512 * 2048 + 2048 + 2048 * 512 + 512)
    sent_s = 8 * 2 * 3 / 4 * gradients / (1e6 * rate)
    compute_s = op_s * len(program.ops)
    assert sent_s == pytest.approx(TIMES * compute_s, rel=0.1)  # one digit of the rate
