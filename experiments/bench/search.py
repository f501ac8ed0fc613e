"""How planning time and memory grow: `python -m experiments.bench.search`.

Plans GPTs of 12 to 96 layers, and a BERT with experts, on 4 to 8192 devices through autoddl.optimize,
each in a process of its own, and prints seconds, peak memory, cost and gap beside their bars. Programs
are captured once, with parameters that take no memory. Everything finished is kept in the folder, so that
an interrupted run goes on. The exit code is 1 where a bar is missed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import pandas as pd

from autoddl.errors import AutoDDLError
from experiments.bench.frozen.suite import FAST_PROFILE, GPT3, MEDIUM
from experiments.hidup import moe_models
from experiments.lib import cli, frames
from experiments.lib.frames import Row, RowStore
from experiments.lib.programs import capture_facts, captured
from experiments.lib.ranks import in_child

MEMORY, LIMIT_S = "80GB", 600.0  # of each device; of a case
GROWTH = {"layers": 1.5, "devices": 2.0, "MoE layers": 8.0, "MoE GPUs": 2.0}
"""By what factor the seconds of a group may grow from its first case to its slowest one."""
FORMS: frames.Formats = {
    "total_s": "{:.2f} s", "peak_bytes": lambda b: f"{b / 1e9:.2f} GB", "gap": "{:.3%}",
    "capture_s": "{:.2f} s", "capture_bytes": lambda b: f"{b / 1e9:.2f} GB",
}  # fmt: skip
COLUMNS: frames.Formats = {
    "case": "{}", "chosen_mesh": "{}", "ops": "{:,.0f}", **FORMS, "cost_s": "{:.5g}", "error": "{}"
}  # fmt: skip


@dataclass(frozen=True)
class GptCase:
    """A model of these sizes on one mesh, or on all meshes of a cluster where `mesh` is empty.

    `bars` are what figures may be at most, by their names in FORMS.
    """

    name: str
    sizes: Mapping[str, Any] = field(hash=False)
    mesh: str = ""
    group: str = ""
    cluster: str = ""
    bars: Mapping[str, float] = field(default_factory=dict, hash=False)
    model: str = "gpt"
    profile: str = FAST_PROFILE


def cases() -> Iterator[GptCase]:
    """Yield all cases.

    GPT-3 of 175 billion parameters, and the same with fewer layers, has one sequence for each node of
    eight, in float32 and without recomputing activations; the medium GPT on more and more devices has
    as many sequences as devices. BERT with experts is that of HiDup's figure 14, with an expert and a
    sequence for each device.
    """
    medium = {"total_s": 3.0, "peak_bytes": 1.5e9, "gap": 0.02, "capture_s": 10.0}
    yield GptCase("medium", MEDIUM, "4x8", bars={**medium, "capture_bytes": 1.2e9})
    for layers in (12, 24, 48, 96):
        bars = {"total_s": 15.0} if layers == GPT3["layers"] else {}
        sizes = GPT3 | {"layers": layers}
        yield GptCase(f"gpt3 {layers} layers", sizes, "128x8", "layers", bars=bars)
    meshes = {devices: f"{devices // 8}x8" for devices in (32, 128, 512, 2048, 8192)}
    for devices, mesh in {8: "2x4", **meshes}.items():
        yield GptCase(f"{devices} devices", MEDIUM | {"batch": devices}, mesh, "devices")
    wide = MEDIUM | {"batch": 64}
    yield GptCase("three axes", wide, "[node 2][node 4][gpu 8]", bars={"total_s": 20.0})
    yield GptCase("mesh searched", wide, cluster="8x8", bars={"total_s": 60.0})
    for layers in (4, 8, 16, 32):
        yield _moe(f"MoE {layers} layers", layers, 4, "4", "MoE layers")
    for devices, mesh in {8: "2x4", **meshes}.items():
        yield _moe(f"MoE {devices} GPUs", 6, devices, mesh, "MoE GPUs")


def _moe(name: str, layers: int, devices: int, mesh: str, group: str) -> GptCase:
    sizes = moe_models.sizes_of(moe_models.MAIN, devices, 1) | {"layers": layers}
    return GptCase(name, sizes, mesh, group, model="bert_moe", profile=moe_models.PROFILE)


@click.command(help=__doc__)
@cli.listed("--only", sorted({name for case in cases() for name in (case.name, case.group) if name}),
            (), help="cases or groups of them; default all")  # fmt: skip
@click.option("--objective", default="time", show_default=True, help="as of autoddl.optimize")
@click.option("--budget", default=20.0, show_default=True, help="seconds for each search")
@cli.folder("out/bench_search")
def command(only: Sequence[str] | None, folder: Path, **search: Any) -> int:
    """Measure what is missing, print the table and the bars."""
    found = [case for case in cases() if not only or {case.name, case.group} & set(only)]
    kept, rows = RowStore(folder / "runs.jsonl"), []
    for case in found:
        key = {"case": case.name, "mesh": case.mesh or case.cluster, "group": case.group, **search}
        try:
            rows.append(kept.once(key, partial(measured, case, search, folder)))
        except AutoDDLError as error:  # it is tried again by the next run
            rows.append({**key, "error": str(error)})
        print(rows[-1].get("error") or "{case}: {total_s:.2f} s".format(**rows[-1]), flush=True)
    frame, every = pd.DataFrame(rows), list(checks(rows, found))
    print(frames.text(frame, {name: form for name, form in COLUMNS.items() if name in frame}))
    for what, figure, bar, met in every:
        print(f"{what}: {figure} (at most {bar}: {'met' if met else 'MISSED'})")
    frames.save(frame, folder, "bench_search", checks=every)
    return 0 if all(met for *_, met in every) else cli.MISSED


def measured(case: GptCase, search: Mapping[str, Any], folder: Path) -> Row:
    """Capture the program of a case if it is not there, plan it in a process of its own.

    Raises:
        AutoDDLError: it failed, or was not done in time.
    """
    file = folder / "programs" / f"{case.model}-{'-'.join(map(str, case.sizes.values()))}.json"
    captured(file, case.model, "toy", **{**case.sizes, "optimizer": "adam"})
    where = {"mesh": case.mesh} if case.mesh else {"cluster": case.cluster}
    options = json.dumps({**where, "profile": case.profile, "memory": MEMORY, **search})
    said = in_child("experiments.bench.planned", [str(file), options], LIMIT_S)
    return {**capture_facts(file), **json.loads(said.splitlines()[-1])}


def checks(rows: Sequence[Row], found: Iterable[GptCase]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (what, figure, bar, met) of all that has a bar: single cases, and how groups grow."""
    for row, case in zip(rows, found, strict=True):
        if row.get("error"):
            yield case.name, row["error"], "a plan", False
            continue
        for name, bar in case.bars.items():
            form = FORMS[name]
            texts = [form.format(x) if isinstance(form, str) else form(x) for x in (row[name], bar)]
            yield f"{case.name}: {name}", *texts, row[name] <= bar + 1e-9 * (name == "gap")
        step_s, best_s = row["step_s"], row["best_baseline_step_s"]
        what = f"{case.name}: step, against {row['best_baseline']}"
        yield what, f"{step_s:.4g} s", f"{best_s:.4g} s", step_s <= best_s * (1 + 1e-9)
    for group, most in GROWTH.items():
        seconds = [r["total_s"] for r in rows if r["group"] == group and not r.get("error")]
        if len(seconds) > 1:
            growth = max(seconds) / seconds[0]
            yield f"growth with {group}", f"{growth:.2f}×", f"{most}×", growth <= most


if __name__ == "__main__":
    sys.exit(cli.run(command, "bench.search"))
