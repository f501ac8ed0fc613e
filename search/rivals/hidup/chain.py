"""A chain of units of a forward pass, and an assignment for it: signatures, and where stages begin.

Before each unit, and behind the last one, is a cut. Its forms, which are numbered, are what the states of
the tensors on it can be. A signature of a unit leads from a form of the cut before it to one of the cut
behind it. Forms change on a cut only where a stage begins. Seconds are of one half of the batch, for each
pass: the forward pass, or that and the backward pass, which goes through the same stages in reverse.

    two units with signatures 0 → 0 and 1 → 1, a move 0 → 1 of 2 s between them: one stage in form 0, one
    in form 1, or two stages that begin in form 0 and end in form 1.

Source: HiDup §4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unit:
    """The signatures of a unit: signature s leads from form `before[s]` to `after[s]`.

    It computes `seconds[s, pass]` for each half, and has `once_s[s]` seconds once for both of them.
    """

    before: Ints
    after: Ints
    seconds: Floats
    once_s: Floats


@dataclass(frozen=True, eq=False)
class Chain:
    """Units, and `moves[i][pass, a, b]`: seconds from form a to b on the cut before unit i + 1.

    Infinity forbids a move. `ends` are the forms behind the last unit that are allowed.
    """

    units: Sequence[Unit]
    moves: Sequence[Floats]
    ends: Ints

    @property
    def passes(self) -> int:
        """Return how many passes have seconds of their own."""
        return int(self.units[0].seconds.shape[1])


@dataclass(frozen=True)
class ChainAssignment:
    """A signature for each unit, and the units with which the stages but the first begin.

    `seconds` are those of both halves, what comes once included; `kept` counts the assignments for parts
    of the chain that end a stage and that no other one dominates.
    """

    signatures: tuple[int, ...]
    begins: tuple[int, ...]
    seconds: float
    kept: int
