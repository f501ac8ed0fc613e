"""Where layers begin in the forward pass, and cuts into stages of as many layers each.

Of 12 layers in 4 stages the cuts are before layers 3, 6 and 9; what comes before the first layer is in
the first stage, what comes behind the last one in the last.
"""

from __future__ import annotations

import itertools

from autoddl.sbp.program import Program
from autoddl.sbp.program.blocks import layer_path, numbered


def layer_begins(program: Program) -> list[int]:
    """Return the positions of the forward pass at which layers begin."""
    ops = (op for op in program.ops if op.phase == "forward")
    layers = ["" if numbered(op.module) is None else layer_path(op.module) for op in ops]
    pairs = enumerate(itertools.pairwise(["", *layers]))
    return [place for place, (a, b) in pairs if b not in ("", a)]


def even_layers(count: int, stages: int) -> tuple[int, ...]:
    """Return the layers, of so many, with which each stage but the first one begins."""
    return tuple(round(count * n / stages) for n in range(1, stages))


def equal_layers(program: Program, stages: int) -> list[int]:
    """Return the positions at which stages of as many layers each begin, all but the first one."""
    begins = layer_begins(program)
    return [begins[layer] for layer in even_layers(len(begins), stages)]
