"""Plans that tests explain: of several programs, made once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import autoddl
from autoddl.api import Plan
from autoddl.perfmodel.profile import Profile
from tests.support.budgets import LITTLE
from tests.support.clusters import cluster
from tests.support.programs import mlp, transformer
from tests.support.zoo import separate_attention

LARGE = {"batch": 64, "length": 64, "width": 256}
PROGRAMS = {
    "mlp": mlp(),
    "transformer": transformer(layers=2),
    "large": transformer(layers=1, **LARGE),
    "attention": separate_attention(),
    "cuda": replace(transformer(layers=2, batch=64, width=64), device="cuda"),
}
MESHES = {"large": "2x4", "cuda": "2x2"}


def profile_for(name: str) -> Profile:
    return cluster(device_type="cuda") if name == "cuda" else cluster()


@cache
def planned(name: str, **options: Any) -> Plan:
    options = {"mesh": MESHES.get(name, "2x2"), "budget": LITTLE, **options}
    return autoddl.optimize(PROGRAMS[name], profile=profile_for(name), **options)
