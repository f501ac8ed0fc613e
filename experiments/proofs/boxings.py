"""Prove boxings over shares: on simulated ranks each leaves a tensor what it was, and in paths, too.

Of tensors with two and three dims, all boxings between all states are run, with partial sums and every
order of the axes, and for every pair of states the path that `perfmodel.redistribution` finds. Of (4, 8)
over the shares 3/1 there are 4 states, so 12 pairs: 12 boxings, and 12 paths of one boxing each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.errors import AutoDDLError
from autoddl.perfmodel import profile
from autoddl.sbp.boxing import boxing
from autoddl.sbp.layout import Path
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle import simulated_boxings, simulated_tensors
from autoddl.sbp.numpy_oracle.simulated_tensors import Array
from autoddl.sbp.shares import units
from autoddl.sbp.state import NdSbp
from experiments.lib.oneflow_problems import redistributor

MESHES = ("2:3/1", "2:2/1", "3:2/1/1", "2:3/1x2", "2x2:3/1")
PRICES = "v100-8x"  # of them depends which paths are cheapest
ITEM_BYTES = 4


@dataclass(frozen=True)
class BoxingResult:
    """What was found of the tensors of one shape on one mesh; `longest` is of paths, in boxings."""

    mesh: str
    shape: tuple[int, ...]
    states: int
    boxings: int
    paths: int
    longest: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class BoxingReport:
    """The results by mesh and shape, and the seed of the tensors."""

    seed: int
    results: tuple[BoxingResult, ...]

    columns = ("mesh", "shape", "states", "boxings", "paths", "longest", "wrong")

    @property
    def faults(self) -> tuple[str, ...]:
        """Say, one line each, which boxings and paths give another tensor."""
        return tuple(line for result in self.results for line in result.wrong)

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return one row per mesh and shape."""
        for r in self.results:
            counts = (r.states, r.boxings, r.paths, r.longest, len(r.wrong))
            yield (r.mesh, "x".join(map(str, r.shape)), *map(str, counts))

    def summary(self) -> str:
        """Sum up in one line."""
        return (
            f"{sum(r.boxings for r in self.results)} boxings and "
            f"{sum(r.paths for r in self.results)} paths run on simulated ranks, "
            f"{len(self.faults)} wrong"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything that was seen, as plain JSON values."""
        return asdict(self)


def run(
    *, seed: int, meshes: Sequence[str] = MESHES,
    progress: Callable[[int, int], None] | None = None,
) -> BoxingReport:  # fmt: skip
    """Run all boxings and paths; `progress` is told how many meshes and shapes are done, of how many."""
    spaces = [(mesh, shape) for mesh in map(Mesh.parse, meshes) for shape in _shapes(mesh)]
    results = []
    for done, (mesh, shape) in enumerate(spaces, 1):
        results.append(_check(mesh, shape, seed))
        if progress is not None:
            progress(done, len(spaces))
    return BoxingReport(seed, tuple(results))


def _shapes(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """Return unlike dims which all axes together cut."""
    total = math.prod(map(units, mesh.cuts))
    return (total, 2 * total), (2 * total, total, 3 * total)


def _check(mesh: Mesh, shape: tuple[int, ...], seed: int) -> BoxingResult:
    prices = redistributor(mesh, profile.load(PRICES), engine=ONEFLOW.whole_space())
    table = prices.table(shape, ITEM_BYTES)
    pairs = list(itertools.permutations(table.states, 2))
    single = [(a, (b,)) for a, b in pairs if boxing(a, b, shape, mesh.cuts) is not None]
    paths = [(a, table.path(a, b)) for a, b in pairs]
    longest = max(len(path) for _, path in paths)
    wrong = tuple(_faults([*single, *paths], mesh, shape, np.random.default_rng(seed)))
    return BoxingResult(
        str(mesh), shape, len(table.states), len(single), len(paths), longest, wrong
    )


def _faults(
    moves: Sequence[tuple[NdSbp, Path]],
    mesh: Mesh,
    shape: tuple[int, ...],
    rng: np.random.Generator,
) -> Iterator[str]:
    whole = rng.normal(size=shape)
    for src, path in moves:
        fault = _fault(whole, src, path, mesh, rng)
        if fault:
            way = " to ".join(map(str, (src, *path)))
            yield f"{way} of shape {shape} on mesh {mesh}: {fault}"


def _fault(whole: Array, src: NdSbp, path: Path, mesh: Mesh, rng: np.random.Generator) -> str:
    shape, cuts = whole.shape, mesh.cuts
    try:
        locals_ = simulated_tensors.shard(whole, src, cuts, rng)
        locals_ = simulated_boxings.run_path(locals_, src, path, shape, cuts)
        got = simulated_tensors.assemble(locals_, path[-1], cuts, shape)
    except (AutoDDLError, ValueError) as error:
        return str(error)
    return "" if simulated_tensors.close(got, whole) else "gives another tensor"
