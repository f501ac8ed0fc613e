"""Plans over shares beside others on ranks: what is run, what is refused, what goes on, what is told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import autoddl
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile as profiles
from autoddl.sbp.mesh import Mesh
from experiments.fidelity import measure
from experiments.hap.measured import contest_runs, contest_tables, node_rates
from experiments.hap.measured.bed_profile import virtual_profile
from experiments.hap.measured.contest_plans import EVEN, OURS, PARTS, VIRTUAL, ContestPlans
from experiments.hap.measured.share_study import FULL, ShareBed, ShareStudy, vectors
from experiments.lib.frames import RowStore
from experiments.lib.varied_profiles import of_two_kinds
from experiments.testbed import TestbedSpec
from tests.support.clusters import cluster
from tests.support.programs import mlp

BED = ShareBed("2x1", 1, (0.8, 0.4), 4)
STUDY = ShareStudy([BED], {"mlp": {"batch": 60}}, passes=2, rounds=2, budget_s=1.0, links=())


@pytest.mark.parametrize(
    ("slower", "found"),
    [(2.0, [(1, 1), (2, 1), (7, 3), (3, 2)]), (4.0, [(1, 1), (4, 1), (5, 1), (3, 1)])],
)
def test_vectors_nearest_to_the_rates_come_first(slower: float, found: list[Any]) -> None:
    assert vectors(60, slower, 4) == found


def test_vectors_divide_the_batch_and_are_unlike() -> None:
    found = vectors(60, 4.0, 99)
    assert len(set(found)) == len(found) == 14
    assert all(60 % sum(pair) == 0 and math.gcd(*pair) == 1 for pair in found)
    for bed in FULL.beds:  # as many as are asked for, and virtual ranks that divide it, too
        for sizes in FULL.models.values():
            assert len(vectors(sizes["batch"] // bed.ranks, 2.0, bed.scanned)) == bed.scanned
            assert sizes["batch"] % bed.virtual["nodes"] == 0


@pytest.mark.parametrize(("ranks", "quotas"), [(1, (0.8, 0.2)), (2, (0.6, 0.3)), (2, (0.6, 0.15))])
def test_virtual_ranks_have_the_quotas_of_what_they_stand_for(
    ranks: int, quotas: tuple[float, float]
) -> None:
    made = TestbedSpec.parse(**ShareBed("bed", ranks, quotas, 4).virtual)
    assert sum(made.cpu) == pytest.approx(ranks * sum(quotas)) and len(set(made.cpu)) == 1


def test_rates_off_their_quotas_are_refused() -> None:
    node_rates.check("2x1", (0.8, 0.2), (100.0, 28.7), 0.15)
    with pytest.raises(AutoDDLError, match=r"rates 1 : 0\.385, not 1 : 0\.250, 54% off") as error:
        node_rates.check("2x1", (0.8, 0.2), (100.0, 38.5), 0.15)
    assert "\n" not in str(error.value)
    with pytest.raises(AutoDDLError, match="26% off"):
        node_rates.check("2x1", (0.8, 0.2), (100.0, 18.5), 0.15)


@pytest.fixture(scope="module")
def plans() -> dict[str, tuple[autoddl.Plan, str]]:
    contest = ContestPlans(mlp(60, (64, 256, 64)), BED, of_two_kinds(cluster()), 0.5)
    assert contest.slower == pytest.approx(2.0)
    return {name: (plan, runs) for name, plan, runs in contest.made()}


def test_plans_of_a_contest(plans: dict[str, tuple[autoddl.Plan, str]]) -> None:
    assert [*plans][:4] == [OURS, EVEN, PARTS, VIRTUAL]
    scan = {name: plan for name, (plan, _) in plans.items() if name.startswith("shares ")}
    for name, plan in scan.items():
        assert plan.mesh == Mesh.parse(f"[node 2:{name.removeprefix('shares ')}]")
    assert plans[EVEN][0].mesh == Mesh.parse("[node 2]")
    assert plans[VIRTUAL][0].mesh == Mesh.parse("[node 3]")
    assert {plan.engine.name for plan in scan.values()} == {"script"}
    assert {plans[name][0].engine.name for name in (EVEN, PARTS)} == {"oneflow"}
    ours, runs = plans[OURS]
    assert plans[runs][0] is ours and ours.estimate.step_s == min(
        plan.estimate.step_s for plan in scan.values()
    )


def test_virtual_ranks_are_as_fast_as_the_slow_node() -> None:
    profile = of_two_kinds(cluster(), 3.0)
    alike = virtual_profile(profile)
    assert alike.device == profile.devices["slow"] and alike.links


def told(plan: str, runs: str = "") -> dict[str, Any]:
    return {
        "plan": plan, "runs": runs or plan, "file": f"{plan}.json", "predicted_s": 1.0, "mesh": "2",
        "ideal_s": 1.0, "slower": 2.0,
    }  # fmt: skip


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = contest_runs.ModelRuns(STUDY, BED, "mlp", tmp_path / "mlp")
    runs.place.mkdir()
    RowStore(tmp_path / contest_runs.RATES).add({"rates": [6.0, 2.0]})
    assert runs.missing
    names = [told(OURS, "shares 2/1"), told(EVEN), told(VIRTUAL), told("shares 2/1")]
    (runs.place / "plans.json").write_text(json.dumps(names))
    launched = []

    def on(testbed: Any) -> measure.Run:
        def run(module: str, arguments: Sequence[str], limit_s: float) -> str:
            job = json.loads(arguments[0])
            launched.append((testbed, job["key"]["pass"], [one["plan"] for one in job["plans"]]))
            if len(launched) in (2, 3):
                return "rank 1 was killed"
            for one in job["plans"]:
                samples = [0.2, 0.6] if one["plan"] == EVEN else [0.1, 0.3]
                row = {"plan": one["plan"], "losses": [1.0], "samples_s": samples}
                runs.kept.add({**job["key"], **row})
            return ""

        return run

    monkeypatch.setattr(measure, "run_on", on)
    with pytest.raises(AutoDDLError, match="2x1, mlp: rank 1 was killed"):
        runs.run("bed", "virtual")  # type: ignore[arg-type]
    runs.run("bed", "virtual")  # type: ignore[arg-type]
    both, alone = [EVEN, "shares 2/1"], [VIRTUAL]
    assert launched[3:] == [("virtual", 1, alone), ("bed", 2, both), ("virtual", 2, alone)]
    assert launched[:3] == [("bed", 1, both), ("virtual", 1, alone), ("virtual", 1, alone)]
    assert not runs.missing
    found = {row["plan"]: row for row in contest_tables.rows(runs)}
    assert found[OURS]["measured_s"] == pytest.approx(0.2) and found[OURS]["rates"] == 3.0
    assert found[EVEN]["times"] == pytest.approx(2.0) and found["shares 2/1"]["times"] == 1.0
    assert found[VIRTUAL]["samples_s"] == [0.1, 0.3, 0.1, 0.3]


def frame(slower: float = 4.0, apart: float = 0.0, **steps: tuple[float, float]) -> pd.DataFrame:
    """Return plans with predicted and measured seconds; ours is the vector 4/1, of one second."""
    steps = {"even": (3.0, 3.0), "parts": (1.3, 1.3), "4/1": (1.0, 1.0), "1/1": (3.0, 3.1), **steps}
    names = {name: f"shares {name}" if "/" in name else name for name in steps}
    plans = [("ours", steps["4/1"]), *((names[name], both) for name, both in steps.items())]
    return pd.DataFrame([
        {"bed": "b", "model": "m", "plan": plan, "mesh": "2", "predicted_s": said, "measured_s": took,
         "times": took, "low": took, "high": took, "apart": apart, "ideal_s": 1.0, "slower": slower,
         "rates": 2.0}
        for plan, (said, took) in plans
    ])  # fmt: skip


def test_what_is_told_of_the_turns() -> None:
    mine = frame(**{"3/1": (1.1, 1.2), "2/1": (1.5, 1.1)})
    (row,) = contest_tables.gains(mine).to_dict("records")
    assert row["even"] == "3.00 (3.00–3.00)" and row["best of scan"] == "1.00 (1.00–1.00) 4/1"
    assert row["ideal over parts"] == pytest.approx(1.3) and row["missed"] == ""
    (scan,) = contest_tables.scans(mine).to_dict("records")
    # ranks 2, 3, 1, 4 against 3, 2, 1, 4: 1 − 6 · 2 / (4 · 15)
    assert scan["spearman"] == pytest.approx(0.8)
    assert (scan["fastest"], scan["vectors"]) == ("4/1", 4)


@pytest.mark.parametrize(
    ("made", "missed"),
    [
        (lambda: frame(even=(3.0, 1.35)), ["over even"]),
        (lambda: frame(slower=2.0, even=(3.0, 1.35)), []),  # no aim for twice as slow
        (lambda: frame(parts=(1.2, 1.04)), ["over parts"]),
        (lambda: frame(parts=(1.05, 1.04)), []),  # ideal is no faster than that
        (lambda: frame(**{"3/1": (1.1, 0.96)}), ["best of scan"]),
        (lambda: frame(**{"3/1": (1.1, 0.98)}), []),
        (lambda: frame(apart=0.01), ["losses"]),
    ],
)
def test_aims(made: Callable[[], pd.DataFrame], missed: list[str]) -> None:
    assert contest_tables.missed(made()) == missed


def test_the_figure_has_all_models_and_beds(tmp_path: Path) -> None:
    contest_tables.draw(frame(**{"3/1": (1.1, 1.2)}), tmp_path / "scan")
    assert (tmp_path / "scan.png").stat().st_size > 10_000


@pytest.mark.oneflow
@pytest.mark.ranks
def test_a_script_is_a_step(tmp_path: Path) -> None:
    """Losses of one rank are those of the model that it was written of."""
    from autoddl.engine.oneflow.capture.shadow import modules
    from experiments import models
    from experiments.figures.clock.script_steps import script_step

    graph, inputs = models.build("mlp")
    profile = profiles.load("cpu-loopback")
    plan = autoddl.optimize(graph, *inputs, mesh="1", profile=profile, engine="script")
    plan.codegen(tmp_path / "script.py")
    (model,) = modules(graph)
    step, batch = script_step(tmp_path / "script.py", model, inputs, 0.1)
    found = [float(step(*batch).numpy()) for _ in range(3)]
    losses = [float(graph(*inputs).numpy()) for _ in range(3)]
    assert found == pytest.approx(losses, abs=1e-5) and found[2] < found[0]
