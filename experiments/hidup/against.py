"""Steps beside those of another checkout: `python -m experiments.hidup.against FOLDER`.

Sixteen models of the zoo on six meshes with node links of three rates, planned by both checkouts. Steps
may be compared where the cost models are the same, so it is counted on one mesh how many baselines step
alike in both; those that don't are laid out otherwise. Where ours is slower it is planned once more with
five times the budget, for on a busy machine a short one looks at few candidates. Meshes inside a node
have no node links; they are planned once. What is done is kept, until code changes; the exit code is 1
where a plan stays slower.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.sbp.mesh import Mesh
from experiments.bench.frozen.side import SECONDS, Side
from experiments.bench.frozen.suite import MESHES, PROFILE, ROOMY, ZOO, Case
from experiments.hidup.clusters import scaled
from experiments.lib import cli, frames
from experiments.lib.ranks import ROOT

NEW, OLD = ".json", ".unsigned.json"  # endings of profiles
FACTORS = (0.3, 1.0, 3.0)
LEVEL = 1e-9  # relative; steps within it take equally long
AGAIN = 5.0  # times the budget, where ours is slower: the 20 s that planning has by default
CHECKED = "2x4"  # on this mesh the baselines of all models are compared, too
COLUMNS: frames.Formats = {
    "model": "{}", "mesh": "{}", "rate": "×{:g}", "old_s": "{:.6f}", "now_s": "{:.6f}",
    "gain": "{:+.2%}", "gap": "{:.2%}", "again": "{}",
}  # fmt: skip


@click.command(help=__doc__)
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@cli.listed("--models", ZOO)
@cli.listed("--meshes", MESHES)
@click.option("--budget", default=4.0, show_default=True, help="seconds for each search")
@cli.folder("out/hidup/against")
def command(
    old: Path, models: Sequence[str], meshes: Sequence[str], budget: float, folder: Path
) -> int:
    """Plan what is missing, print the table, write it."""
    found = list(cases(models, meshes, budget, folder))
    print(
        f"{len(found)} pairs, at most {2 * len(found) * budget / 60:.0f} min and what is repeated"
    )
    sides = Side(ROOT, folder), Side(old, folder)
    try:
        rows = [
            planned(case, sides, f"[{n} of {len(found)}]") for n, case in enumerate(found, start=1)
        ]
    finally:
        for side in sides:
            side.end()
    return report(pd.DataFrame(rows), folder)


def cases(
    models: Sequence[str], meshes: Sequence[str], budget: float, folder: Path
) -> Iterator[Case]:
    """Yield all pairs of a model and a mesh by rate; their profiles are files in the folder."""
    base = profiles.load(PROFILE)
    outer = base.levels[0]
    for factor in FACTORS:
        text = json.dumps(of_one_kind(scaled(base, factor)))
        (folder / f"{base.name}-{factor:g}{OLD}").write_text(text)
        scaled(base, factor).save(folder / f"{base.name}-{factor:g}{NEW}")
    for model in models:
        for mesh in meshes:
            crosses = any(a.level == outer for a in Mesh.parse(mesh, base.levels).axes)
            for factor in FACTORS if crosses else (1.0,):
                task = {
                    "kind": "plan", "model": model, "size": ZOO[model], "mesh": mesh,
                    "profile": str((folder / f"{base.name}-{factor:g}{NEW}").resolve()),
                    "memory": ROOMY, "budget": budget, "baselines": mesh == CHECKED,
                }  # fmt: skip
                yield Case(f"{budget:g} s", f"{model} {mesh} {factor:g}", task)


def of_one_kind(profile: Profile) -> Any:
    """Return what an older checkout reads: version 2, without a digest.

    It refuses fields that it does not know, of links too, but these say nothing where they are empty.
    """
    data = profile.to_json()
    device = data.pop("devices")[ALIKE]

    def said(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: said(v) for k, v in value.items() if v not in ({}, "", [], ())}
        return [said(each) for each in value] if isinstance(value, list | tuple) else value

    return said({**data, "version": 2, "device": device})


def planned(case: Case, sides: tuple[Side, Side], turn: str) -> frames.Row:
    """Return the row of a pair, planned by both where it is not known."""
    older = {**case.task, "profile": case.task["profile"].removesuffix(NEW) + OLD}
    now, old = _figures(sides[0], case), _figures(sides[1], replace(case, task=older))
    baselines = [name for name in now if name.endswith(": step_s") and name in old]
    alike = sum(abs(now[name] / old[name] - 1) <= LEVEL for name in baselines)
    again = "step_s" in now and "step_s" in old and now["step_s"] > old["step_s"] * (1 + LEVEL)
    if again:
        longer = AGAIN * case.task["budget"]
        task = {**case.task, "budget": longer}
        now = _figures(sides[0], replace(case, section=f"{longer:g} s", task=task))
    model, mesh, factor = case.name.split()
    row = {
        "model": model, "mesh": mesh, "rate": float(factor), "now_s": now.get("step_s"),
        "old_s": old.get("step_s"), "gap": now.get("gap"),
        "baselines": len(baselines), "alike": alike, "again": "yes" if again else "",
        "now_seconds": now.get(SECONDS), "old_seconds": old.get(SECONDS),
        "error": now.get("error") or old.get("error") or "",
    }  # fmt: skip
    told = row["error"] or "{old_s:.6f} -> {now_s:.6f} s".format(**row)
    print(f"{turn} {case.name}: {told}{' (planned again)' if again else ''}", flush=True)
    return row


def _figures(side: Side, case: Case) -> dict[str, Any]:
    return side.figures(case) if side.done(case) else side.run(case)


def report(frame: pd.DataFrame, folder: Path) -> int:
    """Print which plans differ and the mean gain; write all; return the exit code."""
    frame["gain"] = frame.old_s / frame.now_s - 1
    shown = frame[frame.gain.abs() > LEVEL].sort_values("gain", ascending=False)
    print(frames.text(shown, COLUMNS))
    slower, failed = int((frame.gain < -LEVEL).sum()), int((frame.error != "").sum())
    mean = float(np.exp(np.log1p(frame.gain).mean()) - 1)
    every = frame.loc[frame.index.repeat(np.where(_once(frame), len(FACTORS), 1))]
    whole = float(np.exp(np.log1p(every.gain).mean()) - 1)
    print(f"baselines that step alike: {frame.alike.sum()} of {frame.baselines.sum()}")
    print(
        f"faster {(frame.gain > LEVEL).sum()}, as fast {(frame.gain.abs() <= LEVEL).sum()}, slower"
    )
    print(
        f"{slower} of {len(frame)} (no plan slower: {'MISSED' if slower else 'met'}), failed {failed}"
    )
    print(
        f"geometric mean of the gain: {mean:+.2%}, of all {len(every)} with repetitions {whole:+.2%}"
    )
    frames.save(frame, folder, "against", factors=FACTORS, mean_gain=mean, mean_gain_all=whole)
    return cli.MISSED if slower or failed else 0


def _once(frame: pd.DataFrame) -> Any:
    """Tell which rows stand for all rates."""
    return frame.groupby(["model", "mesh"])["rate"].transform("count").to_numpy() == 1


if __name__ == "__main__":
    sys.exit(cli.run(command, "hidup.against"))
