"""HAP's linear program: the shares of the devices, of which a given program takes least.

Collectives divide a program into stages. What a stage computes takes each device a constant, for what
all do whole, and more for its share B_j; padded gathers and scatters wait for the largest share:

    minimise  Σ_stages fixed + padded · max_j B_j + max_j (constant_j + share_j · B_j)
    subject to  Σ_j B_j = 1,  B ≥ 0

Of two devices that take 1 s and 3 s for everything, the shares are 3/4 and 1/4, 0.75 s on both; with a
gather of 4 s for the whole they are equal, since 1/2 of it is sooner there.

Source: HAP (seed 001), "Optimization Problem Formulation".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SharedStage:
    """Collectives, and what is computed behind them up to the next ones; seconds by device.

    Device j computes `constant_s[j] + share_s[j] · B_j` seconds. Collectives take `fixed_s`, whatever the
    shares are, and `padded_s · max B`.
    """

    constant_s: tuple[float, ...]
    share_s: tuple[float, ...]
    padded_s: float = 0.0
    fixed_s: float = 0.0


def stages_s(stages: Sequence[SharedStage], shares: Sequence[float]) -> float:
    """Return the seconds of a program under some shares."""
    total = 0.0
    for stage in stages:
        lines = zip(stage.constant_s, stage.share_s, shares, strict=True)
        total += stage.fixed_s + stage.padded_s * max(shares) + max(c + s * b for c, s, b in lines)
    return total


def best_shares(stages: Sequence[SharedStage]) -> tuple[float, ...]:
    """Return the shares under which a program takes least; there is a stage at least.

    Columns are the shares, the largest of them, and the seconds of each stage.
    """
    from scipy.optimize import linprog  # takes time to load

    devices, count = len(stages[0].share_s), len(stages)
    even_s = stages_s(stages, [1 / devices] * devices)
    scale = 1 / even_s if even_s > 0 else 1.0  # tolerances of HiGHS are absolute
    share, constant = (
        scale * np.array([getattr(stage, name) for stage in stages])
        for name in ("share_s", "constant_s")
    )
    waits = np.hstack([
        share.reshape(-1, 1) * np.tile(np.eye(devices), (count, 1)),
        np.zeros((count * devices, 1)),
        -np.repeat(np.eye(count), devices, axis=0),
    ])  # fmt: skip
    largest = np.hstack([np.eye(devices), -np.ones((devices, 1)), np.zeros((devices, count))])
    cost = np.array([*[0.0] * devices, scale * sum(s.padded_s for s in stages), *[1.0] * count])
    one = np.array([[1.0] * devices + [0.0] * (1 + count)])
    found = linprog(
        cost, A_ub=np.vstack([waits, largest]),
        b_ub=np.concatenate([-constant.reshape(-1), np.zeros(devices)]), A_eq=one, b_eq=[1.0],
        bounds=[*[(0.0, 1.0)] * (devices + 1), *[(None, None)] * count],
    )  # fmt: skip
    return tuple(found.x[:devices].tolist())
