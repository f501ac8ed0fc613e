"""What planning asks of the algebra, timed: `PYTHONPATH=CHECKOUT python algebra_parts.py PROGRAM`.

It is run by its path, so that older checkouts are asked alike. It prints as JSON the seconds of the
processor that each part takes on even meshes: the median of REPEAT runs, each with empty caches.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping

from autoddl.engine.oneflow.model.engine_model import ONEFLOW
from autoddl.perfmodel import profile
from autoddl.perfmodel.redistribution import Redistributor
from autoddl.sbp import shards
from autoddl.sbp.boxing import boxing
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.rules import candidates
from autoddl.sbp.rules.registry import OpView
from autoddl.search.network import builder

REPEAT = 15
MESHES = ("4", "2x4", "2x2x2")
SHAPES = ((64, 32), (16, 48, 32), (8, 16, 24, 32))
PRICES = "v100-8x"


def states(program: Program) -> None:
    """List all states, check each and cut by it."""
    for mesh, shape in itertools.product(MESHES, SHAPES):
        sizes = Mesh.parse(mesh).shape
        for state in shards.all_states(shape, sizes, any_order=True):
            shards.check_state(state, shape, sizes)
            shards.local_shape(shape, state, sizes)


def signatures(program: Program) -> None:
    """List the signatures of all ops of a step."""
    for mesh, op in itertools.product(MESHES[:2], program.ops):
        candidates.nd_signatures(OpView.of(op, program.shapes(op)), Mesh.parse(mesh).shape)


def boxings(program: Program) -> None:
    """Look for a boxing between any two states."""
    for mesh, shape in itertools.product(MESHES, SHAPES[:2]):
        sizes = Mesh.parse(mesh).shape
        every = list(shards.all_states(shape, sizes))
        for before, after in itertools.product(every, every):
            boxing(before, after, shape, sizes)


def tables(program: Program) -> None:
    """Find the cheapest paths between all states."""
    for mesh in MESHES:
        prices = Redistributor(Mesh.parse(mesh), profile.load(PRICES), ONEFLOW)
        for shape in SHAPES:
            prices.table(shape, 4)


def problem(program: Program) -> None:
    """Build the problem of a step."""
    builder.build(program, Mesh.parse("2x4"), profile.load(PRICES), ONEFLOW)


PARTS: Mapping[str, Callable[[Program], None]] = {
    part.__name__: part for part in (states, signatures, boxings, tables, problem)
}


def seconds(part: Callable[[Program], None], program: Program) -> float:
    """Return what one run takes of the processor, with empty caches."""
    for cached in (shards._local_shape, candidates._even):
        cached.cache_clear()
    gc.collect()
    begin = time.process_time()
    part(program)
    return time.process_time() - begin


def main(file: str) -> None:
    """Print the seconds of all parts; the first run of each, which compiles, does not count."""
    program, found = Program.load(file), {}
    for name, part in PARTS.items():
        found[name] = statistics.median([seconds(part, program) for _ in range(REPEAT + 1)][1:])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
