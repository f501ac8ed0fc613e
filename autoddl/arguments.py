"""What `optimize` is called with: read, or refused in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autoddl.errors import AutoDDLError
from autoddl.perfmodel.compute_stream import AXES
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.rules.engines import ENGINES
from autoddl.search.baselines import BASELINES
from autoddl.search.objective import OBJECTIVES, TIME
from autoddl.search.solvers import SOLVERS

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
AUTO = "auto"  # let the planner choose the number of stages
SEARCHES = (*SOLVERS, *BASELINES)


def check_space(*, objective: Any, engine: Any) -> None:
    """Raise AutoDDLError for what there are no problems of."""
    if objective not in OBJECTIVES:
        raise AutoDDLError(f"objective: got {objective!r}; allowed are {', '.join(OBJECTIVES)}")
    if engine is not None and engine not in ENGINES:
        raise AutoDDLError(f"engine: got {engine!r}; allowed are {', '.join(ENGINES)} or None")


def check_arguments(*, search: Any, budget: Any, stop_gap: Any, seed: Any, pin: Any) -> None:
    """Raise AutoDDLError for what no search accepts."""
    if search not in SEARCHES:
        raise AutoDDLError(f"search: got {search!r}; allowed are {', '.join(SEARCHES)}")
    if not _is_number(budget) or not budget > 0:
        raise AutoDDLError(f"budget: got {budget!r}; allowed are seconds > 0")
    if not _is_number(stop_gap) or not 0 <= stop_gap < 1:
        raise AutoDDLError(f"stop_gap: got {stop_gap!r}; allowed are 0 (proven best) to below 1")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise AutoDDLError(f"seed: got {seed!r}; allowed are whole numbers >= 0")
    if pin is None:
        return
    if not isinstance(pin, Mapping):
        raise AutoDDLError(
            f"pin: got {pin!r}; give a dict of name patterns and states, {{'*.fc1.weight': 'B,S0'}}"
        )
    for pattern, state in pin.items():
        if not isinstance(pattern, str) or not isinstance(state, str):
            raise AutoDDLError(
                f"pin {pattern!r}: got {state!r}; give a name pattern and a state such as 'B,S0'"
            )


def check_pipeline(pipeline: Any, micro_batches: Any, *, search: str, objective: str) -> None:
    """Raise AutoDDLError for stages and micro-batches that can't be."""
    for name, value, words in (
        ("pipeline", pipeline, "'auto' or a number of stages from 1 on"),
        ("micro_batches", micro_batches, "a whole number from 1 on"),
    ):
        if value is None or (name == "pipeline" and value == AUTO):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise AutoDDLError(f"{name}: got {value!r}; allowed is {words}")
    staged = pipeline not in (None, 1) or micro_batches not in (None, 1)
    if staged and (search not in SOLVERS or objective != TIME):
        raise AutoDDLError(
            f"pipeline: got search {search!r} and objective {objective!r}; stages are planned for the "
            f"time of a step, with search one of {', '.join(SOLVERS)}"
        )


def compute_streams(
    given: Any, device: str, stages: Any = None, micro_batches: Any = None
) -> tuple[bool, ...]:
    """Return whether to plan with separate streams (False) or the compute stream, the first first.

    Raises:
        AutoDDLError: not a choice, or one that a program on these devices, or with stages, has not.
    """
    if given not in (AUTO, True, False) or isinstance(given, int | float) != isinstance(
        given, bool
    ):
        raise AutoDDLError(f"compute_stream: got {given!r}; allowed are 'auto', True and False")
    if given is True and device != "cuda":
        raise AutoDDLError(
            f"compute_stream: got True for a program on {device!r}; only CUDA devices have streams"
        )
    staged = stages not in (None, 1, AUTO) or micro_batches not in (None, 1)
    if given is True and (staged or stages == AUTO):
        raise AutoDDLError(
            "compute_stream: got True with stages or micro-batches, which have streams of their own; "
            "plan with pipeline=1"
        )
    if given is False or device != "cuda" or staged:
        return (False,)
    return (True,) if given is True else (False, True)


def streams_on(mesh: Mesh, streams: Sequence[bool]) -> Sequence[bool]:
    """Return those of the choices of streams that a mesh has.

    Raises:
        AutoDDLError: it has none.
    """
    if sum(n > 1 for n in mesh.shape) <= AXES:
        return streams
    left = [stream for stream in streams if not stream]
    if not left:
        raise AutoDDLError(
            f"compute_stream: got True on mesh {mesh}; OneFlow puts boxings on the compute stream on "
            f"meshes of up to {AXES} axes"
        )
    return left


def parse_bytes(text: str | float) -> int:
    """Read "16GiB", "512 MB", "1e9" or a number of bytes; KiB is 1024, KB 1000.

    Raises:
        AutoDDLError: not a size.
    """
    size = math.nan
    if isinstance(text, str):
        match = re.fullmatch(
            r"\s*(\d+\.?\d*|\.\d+)(e\d+)?\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE | re.ASCII
        )
        if match is not None:
            base = 1024 if match[4] else 1000
            size = float(match[1] + (match[2] or "")) * base ** _UNITS[match[3].upper()]
    elif _is_number(text):
        size = float(text)
    if not 1 <= size < math.inf:
        raise AutoDDLError(
            f"memory: got {text!r}; allowed are sizes > 0 such as '16GiB', '500MB' or 16e9 (bytes)"
        )
    return int(size)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def mesh_of(given: Any, levels: tuple[str, ...]) -> Mesh:
    """Return the mesh that the user means."""
    if isinstance(given, Mesh):
        return given
    sizes = (given,) if isinstance(given, int) else given
    listed = isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes)
    if not isinstance(sizes, str) and not (listed and not any(isinstance(n, bool) for n in sizes)):
        raise AutoDDLError(f"mesh: got {given!r}; allowed are sizes such as '4', '2x4' or (2, 4)")
    return Mesh.parse(sizes, levels)
