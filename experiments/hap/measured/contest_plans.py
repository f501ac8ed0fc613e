"""The plans that take turns: ours over shares, a scan of vectors, even ones, parts, virtual ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import autoddl
from autoddl.api import Plan
from autoddl.engine import engines
from autoddl.perfmodel.profile import Profile
from autoddl.planner.uneven.share_vectors import compute_s
from autoddl.sbp.mesh import Axis, Mesh
from autoddl.sbp.program import Program
from experiments.hap.measured.bed_profile import virtual_profile
from experiments.hap.measured.share_study import ShareBed, Vector, vectors

OURS, EVEN, PARTS, VIRTUAL = "ours", "even", "parts", "virtual ranks"
VECTOR = "shares "  # what the name of a vector's plan begins with
SCRIPTS = engines.model("script").name


@dataclass(frozen=True)
class ContestPlans:
    """The plans of a program for a bed under its measured profile; searches may take `budget_s`."""

    program: Program
    bed: ShareBed
    profile: Profile
    budget_s: float

    @property
    def slower(self) -> float:
        """Return how many times as long all ops take on a rank of the slow node, as they were timed."""
        fast_s, slow_s = self._alone_s
        return slow_s / fast_s

    @property
    def ideal_s(self) -> float:
        """Return what a step takes if all ranks compute by their speed, and nothing is communicated."""
        return 1 / sum(self.bed.ranks / alone_s for alone_s in self._alone_s)

    def made(self) -> Iterator[tuple[str, Plan, str]]:
        """Yield plans by name, each with the name of the one that is run for it.

        Where our shares are scanned, too, the vector has our plan, and is run for both.
        """
        ours = self._optimized(engine=SCRIPTS, pipeline=1)
        batch = self.program.tensor[self.program.inputs[0]].shape[0]
        tried = vectors(batch // self.bed.ranks, self.slower, self.bed.scanned)
        meshes = {f"{VECTOR}{fast}/{slow}": self._mesh((fast, slow)) for fast, slow in tried}
        same = next((name for name, mesh in meshes.items() if mesh == ours.mesh), OURS)
        yield OURS, ours, same
        yield EVEN, self._optimized(pipeline=1, shares=False), EVEN
        yield PARTS, self._optimized(shares=False), PARTS
        yield VIRTUAL, self._virtual(), VIRTUAL
        for name, mesh in meshes.items():
            yield name, ours if name == same else self._on(mesh), name

    @property
    def _alone_s(self) -> tuple[float, float]:
        seconds = compute_s(self.program, self.profile, self.bed.bed.cluster)
        fast_s, slow_s = (float(seconds[kind].sum()) for kind in self.bed.bed.kinds)
        return fast_s, slow_s

    def _optimized(self, **options: Any) -> Plan:
        asked = {"cluster": self.bed.bed.cluster, "profile": self.profile, "budget": self.budget_s}
        return autoddl.optimize(self.program, **{**asked, **options})

    def _mesh(self, vector: Vector) -> Mesh:
        """Return the mesh whose nodes have these shares."""
        outer, inner = self.bed.bed.cluster.levels
        axes = Axis(outer.name, outer.size, vector), Axis(inner.name, inner.size)
        return Mesh(axes if inner.size > 1 else axes[:1])

    def _on(self, mesh: Mesh) -> Plan:
        """Return the best plan on a mesh with shares."""
        return self._optimized(mesh=mesh, engine=SCRIPTS)

    def _virtual(self) -> Plan:
        outer = self.bed.bed.cluster.levels[0].name
        mesh = Mesh((Axis(outer, self.bed.virtual["nodes"]),))
        return autoddl.optimize(
            self.program, mesh=mesh, profile=virtual_profile(self.profile), engine=SCRIPTS,
            budget=self.budget_s, pipeline=1,
        )  # fmt: skip
