"""The experiment with pipelines: shares of cuts, ranks that share cores, their calibration."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration.kernel_fits import Timed
from autoddl.planner.stages.stage_links import Links
from autoddl.planner.stages.staged_assignment import Staged
from autoddl.planner.whole.assigned import Assigned
from autoddl.sbp.mesh import Cluster, Mesh
from autoddl.sbp.program.forward_positions import positions
from autoddl.sbp.rewrites.micro_batch import micro_batch
from experiments.fidelity import pipelines, shared_cores
from experiments.lib.oneflow_problems import build
from tests.support.pipelines import once_s, pass_s
from tests.support.programs import transformer

PROFILE = profiles.load(None)


def staged(stages: int, shares: tuple[float, ...] = ()) -> Staged:
    program = micro_batch(transformer(layers=4), 4)
    problem = build(program, Mesh.parse("1"), PROFILE)
    links = Links(PROFILE, Cluster.parse(str(stages), PROFILE.levels))
    only, found = Assigned(problem, [0] * len(problem)), positions(program)
    whole = Staged.equal(only, found, (), 4, links)
    bounds = pipelines._bounds(whole, shares or (1 / stages,) * stages)
    return Staged.equal(only, found, bounds, 4, links)


def test_cuts_have_the_shares_that_were_asked_for() -> None:
    found = staged(2, (0.75, 0.25))
    first, second = (
        sum(s.seconds for s in found.planned if s.stage == stage and s.phase != "once")
        for stage in range(2)
    )
    assert first / (first + second) == pytest.approx(0.75, abs=0.05)


def test_stages_that_share_cores_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = staged(4)
    busy = [4 * pass_s(work) + once_s(work) for work in found.step.stages]

    def on(cores: int) -> float:
        monkeypatch.setattr(shared_cores, "cores", lambda: cores)
        return shared_cores.step_s(found.step, 1)

    apart, shared, one = map(on, (4, 2, 1))
    assert apart == pytest.approx(found.timeline.step_s)
    assert apart < shared < one
    assert shared >= max(busy[0] + busy[2], busy[1] + busy[3])
    # On one core nobody waits for anything but transfers and turns.
    moved_s = sum(t.seconds for t in found.step.transfers)
    assert sum(busy) <= one * (1 + 1e-9) and one <= sum(busy) + 4 * moved_s


def test_case_names() -> None:
    names = [case.name for case in pipelines.CASES]
    assert len(set(names)) == 12
    assert (
        pipelines.PipelineCase("mlp", 4, 1, 2, (0.4, 0.1, 0.4, 0.1)).name
        == "mlp-4x1-m2-40-10-40-10"
    )


def test_calibration_is_what_an_op_takes_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_cores, "cores", lambda: 2)

    def timed(factor: float) -> list[dict[str, object]]:
        return [
            asdict(Timed("matmul", "matmul", "float32", 1e9 * n, 1e6, factor * (1e-4 + 0.02 * n)))
            for n in (1, 2, 4, 8)
        ]

    for ranks, passes in ((2, (1.0,)), (4, (3.0, 2.0))):  # a noisy pass, then twice the time
        lines = [json.dumps({"ops": timed(factor)}) for factor in passes]
        (tmp_path / f"{ranks}.jsonl").write_text("\n".join(lines) + "\n")
    alone, shared = (
        shared_cores.device(tmp_path / f"{ranks}.jsonl", ranks).kernels["matmul"]
        for ranks in (2, 4)
    )
    assert shared.flops_per_s["float32"] == pytest.approx(alone.flops_per_s["float32"])
    assert alone.flops_per_s["float32"] == pytest.approx(1e9 / 0.02, rel=0.05)
