"""Steps on unlike devices: even, in parts, over shares, and what grouped gathers save of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import autoddl
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.boxing_prices import BoxingPrices, ways_of
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.roofline import OpWork, device_s
from autoddl.plan.value import PlanValue
from autoddl.planner.uneven.share_vectors import TRIED
from autoddl.sbp.boxing import ALL_GATHER, boxing
from autoddl.sbp.program import Program
from autoddl.sbp.state import broadcast
from experiments.hidup import moe_models
from experiments.lib.frames import Row
from experiments.lib.programs import captured
from experiments.lib.varied_profiles import as_fast, of_kinds, of_two_kinds

BASE = "v100-8x"
BATCH = 48  # 3, 4, 6, 8, 12 and 16 units divide it
SIZES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "GPT": ("gpt", "gpt2_small", {"layers": 8, "width": 1024, "heads": 16, "sequence": 512}),
    "VGG13": ("vgg13", "vgg13", {}),
}
# How many times as long as BASE's they take, by data sheets: 15.7 and 9.3 Tflop/s of float32, 312 and
# 125 of float16.
PAIRS = {"V100+P100": {"v100": 1.0, "p100": 1.69}, "A100+V100": {"a100": 0.4, "v100": 1.0}}
GPUS = 4

Asked = dict[str, Any]


def table_row(model: str, slower: float, budget_s: float, folder: Path) -> Row:
    """Return the steps of a model on two nodes of one device, of which the second takes so many times
    as long.

    `ideal_s` is all compute by speed, without communication.
    """
    name, size, sizes = SIZES[model]
    file = folder / f"{name}-{BATCH}.json"
    program = captured(file, name, size, **{**sizes, "batch": BATCH, "optimizer": "adam"})
    profile = of_two_kinds(profiles.load(BASE), slower)
    asked: Asked = {"cluster": "1*fastx1 + 1*slowx1", "profile": profile, "budget": budget_s}
    plans = planned(replace(program, device="cuda"), asked)
    parts = autoddl.optimize(replace(program, device="cuda"), **asked, shares=False)
    alone_s = compute_s(program, profile)
    return {
        **{f"{name}_s": plan.estimate.step_s for name, plan in plans.items()},
        "mesh": str(plans["shares"].mesh), "parts_s": parts.estimate.step_s,
        "stages": len(parts.parts), "ideal_s": alone_s * slower / (1 + slower),
    }  # fmt: skip


def ablation_row(model: str, pair: str, gbit: float, budget_s: float, folder: Path) -> Row:
    """Return the steps of a model on two nodes of each kind, one device each, at so many Gbit/s.

    As in the paper nothing overlaps: what counts is the sum of compute and communication.
    """
    program = moe_models.program(model, folder, GPUS)
    profile = as_fast(of_kinds(profiles.load(BASE), PAIRS[pair], pair), gbit)
    cluster = " + ".join(f"{GPUS // 2}*{kind}x1" for kind in PAIRS[pair])
    asked: Asked = {
        "cluster": cluster, "profile": profile, "budget": budget_s, "objective": "sum"
    }  # fmt: skip
    plans = planned(program, asked)
    data = next(row for row in plans["even"].baselines if row.name == "data parallel")
    rows = {"data_s": data, **{f"{name}_s": plan.estimate for name, plan in plans.items()}}
    return {
        **{name: row.compute_s + row.communication_s for name, row in rows.items()},
        "gap": max(plan.search.gap for plan in plans.values()), "mesh": str(plans["shares"].mesh),
        "saved_s": grouped_saves_s(plans["shares"], profile),
    }  # fmt: skip


def planned(program: Program, asked: Asked) -> Mapping[str, PlanValue]:
    """Return the plans of one stage in the whole space, of even cuts and of shares.

    The latter have as many times the budget as a mesh has vectors of shares, even ones included.
    """
    more = {**asked, "budget": asked["budget"] * (1 + TRIED)}
    return {
        "even": autoddl.optimize(program, **asked, engine=None, pipeline=1, shares=False),
        "shares": autoddl.optimize(program, **more, engine=None, pipeline=1),
    }


def compute_s(program: Program, profile: Profile) -> float:
    """Return what all ops take on the fast device, nothing cut."""
    works = [
        OpWork.of(program, op, dict.fromkeys([o for o, _ in op.operands], broadcast(1)), (1,))
        for op in program.ops
    ]
    return sum(device_s(profile.devices["fast"], work) for work in works)


def grouped_saves_s(plan: PlanValue, profile: Profile) -> float:
    """Return what gathers over shares take less in a plan than if all of them were padded."""
    mesh, layout, saved_s = plan.mesh, plan.layout, 0.0
    prices = BoxingPrices(mesh, profile.part(profile.kinds))
    for move in layout.redistributions:
        tensor = plan.program.tensor[move.tensor]
        for states in pairwise((layout.made[move.tensor], *move.path)):
            step = boxing(*states, tensor.shape, mesh.cuts, uneven=True)
            if step is not None and step.primitive == ALL_GATHER:
                padded, *_ = ways_of(step, tensor.item_bytes, mesh.cuts[step.axes[0]])
                saved_s += prices.way_s(padded) - prices.step_s(step, tensor.item_bytes)
    return saved_s
