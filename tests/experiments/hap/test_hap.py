"""HAP's studies: what is summed up, what misses, and what grouped broadcasts save, by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import autoddl
from autoddl.perfmodel.topology import crossing
from autoddl.search.budget import Budget
from experiments.hap.__main__ import MISSES, command, synthesis_row, toy_row
from experiments.hap.unlike_steps import compute_s, grouped_saves_s
from experiments.lib import cli
from experiments.lib.varied_profiles import as_fast, of_kinds, of_two_kinds
from tests.support.clusters import cluster
from tests.support.programs import mlp


def test_toys_and_synthesis_are_printed_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiments.hap.__main__.TOYS", 3)
    arguments = ["--studies", "toys,synthesis", "--folder", str(tmp_path)]
    assert cli.run(command, "hap", arguments) == 0
    out = capsys.readouterr().out
    rows = pd.DataFrame([toy_row(seed) for seed in range(3)])
    found = sum(rows.hap_s <= rows.best_s * (1 + 1e-9))
    line = next(line for line in out.splitlines() if line.split()[:2] == ["3", "3"])
    assert int(line.split()[3]) == found
    states = [synthesis_row(seed)["dual"] for seed in range(3)]
    assert str(sum(states)) in out
    assert len(pd.read_csv(tmp_path / "toys.csv")) == 3


@pytest.mark.parametrize(
    ("study", "good", "bad"),
    [
        ("table", {"even_s": 2.0, "shares_s": 2.0}, {"even_s": 2.0, "shares_s": 2.1}),
        ("toys", {"best_s": 2.0, "race_s": 1.9}, {"best_s": 2.0, "race_s": 2.1}),
        ("synthesis", {"free_s": 2.0, "once_s": 2.1}, {"free_s": 2.1, "once_s": 2.0}),
    ],
)
def test_what_misses(study: str, good: dict[str, float], bad: dict[str, float]) -> None:
    assert MISSES[study](pd.DataFrame([good, bad])).tolist() == [False, True]


@pytest.mark.parametrize(("right", "missed"), [(10, False), (8, False), (7, True)])
def test_eight_of_ten_gathers_go_the_faster_way(right: int, missed: bool) -> None:
    chosen = ["padded"] * right + ["grouped"] * (10 - right)
    frame = pd.DataFrame({"chosen": chosen, "faster": ["padded"] * 10})
    assert MISSES["gathers"](frame).any() == missed


def test_kinds_take_so_many_times_as_long() -> None:
    program, base = mlp(64, (32, 64)), cluster()
    profile = of_kinds(base, {"fast": 0.4, "same": 1.0}, "pair")
    assert profile.devices["same"] == base.device
    assert compute_s(program, profile) == pytest.approx(
        0.4 * compute_s(program, of_kinds(base, {"fast": 1.0}, "one"))
    )


def test_grouped_broadcasts_save_where_one_has_nearly_all() -> None:
    """Weights are gathered: padded to 13 of 16 units for each of three, or broadcast one by one."""
    profile = as_fast(of_two_kinds(cluster(), 12.0), 100.0)
    asked = {"engine": None, "pipeline": 1, "profile": profile, "budget": Budget(evaluations=500)}
    pins = {"*weight": "S0", "input*": "S0"}
    program = mlp(8192, (1024, 1024))
    plan = autoddl.optimize(program, **asked, cluster="1*fastx1 + 3*slowx1", pin=pins)
    assert plan.mesh.axes[0].shares[0] > 4
    whole = profile.part(profile.kinds)
    link = whole.link("all_gather", crossing(plan.mesh, (0,), "gpu"))
    saved_s = 0.0
    for move in plan.layout.redistributions:
        if plan.layout.made[move.tensor][0].is_split and not move.path[0][0].is_split:
            size = plan.program.tensor[move.tensor].size_bytes
            largest = max(plan.mesh.axes[0].shares) / sum(plan.mesh.axes[0].shares)
            padded_s = 3 * (link.alpha_s + largest * size * link.beta_s_per_byte)
            launch_s = 3 * whole.op_overhead_s  # more than one
            grouped_s = launch_s + 12 * link.alpha_s + size * link.beta_s_per_byte
            saved_s += max(0.0, padded_s - grouped_s)
    assert saved_s > 0
    assert grouped_saves_s(plan, profile) == pytest.approx(saved_s, rel=1e-3)
