"""What may be chosen besides the states of tensors: stages, micro-batches, meshes, streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoddl.engine.model import StreamUse
from autoddl.planner.request import Request
from autoddl.planner.uneven.share_vectors import TURNS, alternated_mesh, share_meshes
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.search.solvers.named import HAP

# Of one tensor: tables of all pairs of states grow with the square of it. Half takes the meshes of 4 axes
# from tensors of 3 dims: DLRM on 4x4 is 3.6 % slower. Twice gives them to tensors of 4 dims: GPT-2 on
# 2x2x2x2 takes 30 s of CPU time and 1.9 GiB, not 1 s and 0.2 GiB as on 4x4, for a plan 3.5 % slower.
MOST_STATES = 700


@dataclass(frozen=True)
class Candidate:
    """Stages, micro-batches, the mesh of each stage, how boxings run; `duplex`: halves in turn.

    No stages stand for any number, on parts of any size of the devices of `mesh`. `in_parts` are
    BatchNorm and dropout (sbp.rewrites.in_parts), so many ops are `recomputed`, and cuts may have
    `strides`.
    """

    stages: int
    micro_batches: int
    mesh: Mesh
    way: StreamUse
    duplex: bool = False
    in_parts: bool = False
    recomputed: int = 0
    strides: bool = False

    @property
    def place(self) -> tuple[int, int, Mesh]:
        """Return what candidates have in common that differ in how boxings run."""
        return self.stages, self.micro_batches, self.mesh

    @property
    def text(self) -> str:
        """Return its stages and micro-batches in words."""
        stages = (
            f"{self.stages} stages of mesh {self.mesh}" if self.stages else "stages of any size"
        )
        return f"{stages} with {self.micro_batches} micro-batches"

    @property
    def pipelined(self) -> bool:
        """Tell whether there are several stages or micro-batches."""
        return self.stages != 1 or self.micro_batches > 1


def mesh_rounds(request: Request) -> Iterator[Sequence[Mesh]]:
    """Yield the meshes of plans without stages: first those that cut evenly, then those with shares.

    The third round and what follows are worth a search where no plan of those with shares fits.
    """
    if request.search == HAP:
        yield [alternated_mesh(request)]
    elif request.mesh is not None:
        yield [request.mesh]
    else:
        yield list(request.cluster.meshes(request.most_axes))
        for turn in range(TURNS):
            yield list(share_meshes(request, turn))


def ways_on(request: Request, mesh: Mesh) -> tuple[StreamUse, ...]:
    """Return the ways to run boxings that a mesh has.

    Where it has none of those that are asked for the making of its problem is refused.
    """
    ways = request.ways_of()
    return tuple(way for way in ways if way.runs_on(mesh)) or ways


def too_large(program: Program, mesh: Mesh) -> bool:
    """Tell whether some tensor has too many states on a mesh: B, P or S of any dim for every axis."""
    most_dims = max((len(t.shape) for t in program.tensors), default=0)
    return (most_dims + 2) ** mesh.ndim > MOST_STATES


def counts(request: Request, stages: int) -> list[int]:
    """Return the numbers of micro-batches of parts of any size, 0 stages: the given one, or all divisors.

    Of equal stages they are those that divide the batch, from the number of stages to eight times it; one
    stage with one micro-batch is no pipeline.
    """
    if stages:
        found = _micro_batches(request.program, stages, request.micro_batches)
        found = [count for count in found if (stages, count) != (1, 1)]
    elif request.micro_batches is not None:
        found = [request.micro_batches]
    else:
        found = divisors(_batch(request.program))
    return [count for count in found if request.ways_of(stages, count)]


def _batch(program: Program) -> int:
    """Return what micro-batches have to divide."""
    shapes = [program.tensor[name].shape for name in program.inputs]
    return math.gcd(*(shape[0] for shape in shapes if shape)) if shapes else 1


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, the least first."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _micro_batches(program: Program, stages: int, given: int | None) -> list[int]:
    if given is not None:
        return [given]
    found = [n for n in divisors(_batch(program)) if stages <= n <= 8 * stages]
    if not found:
        return []

    def nearest(wanted: int) -> int:
        return min(found, key=lambda n: abs(math.log(n / wanted)))

    return sorted({nearest(stages * times) for times in (1, 2, 4, 8)})
