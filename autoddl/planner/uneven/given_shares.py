"""Shares that the user asks for with a mesh: what beside them can't be, and which sums divide anything.

Of a program with dims of 48 and 64 the mesh 2:3/2 cuts none into 5 units; 2:2/1, 2:3/1 and 2:5/3 do.
"""

from __future__ import annotations

from autoddl.engine.model import EngineModel
from autoddl.errors import AutoDDLError
from autoddl.planner.plan_options import Options
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.shares import MOST_UNITS, units
from autoddl.search.solvers.named import HAP, HIDUP

MOST_TOLD = 8  # sums


def why_even(asked: Options, engine: EngineModel) -> str:
    """Return the option beside which all cuts are even, why, and what is allowed; "" where none is."""
    for option, even, why, allowed in (
        (f"engine={engine.name!r}", not engine.limits.shares, f"{engine.title} cuts evenly",
         "engine='script' or engine=None"),
        ("shares=False", not asked.shares, "all cuts are even", "shares='auto'"),
        ("duplex=True", asked.duplex is True, "the halves of a batch are cut evenly", "duplex=False"),
        (f"search={HIDUP!r}", asked.search == HIDUP, "the halves of a batch are cut evenly",
         "search='exact'"),
        ("compute_stream=True", asked.compute_stream is True, "only even cuts are boxed there",
         "compute_stream='auto'"),
        ("allow_local_batchnorm=True", asked.allow_local_batchnorm,
         "statistics of unlike parts of a batch have unlike weights", "allow_local_batchnorm=False"),
    ):  # fmt: skip
        if even:
            return f"{option}, where {why}; allowed with shares: {allowed}"
    return ""


def check_given(mesh: Mesh, program: Program, asked: Options, engine: EngineModel) -> None:
    """Raise AutoDDLError where the shares of a mesh can't be planned, or cut nothing."""
    if mesh.cuts == mesh.shape:
        return
    why, even = why_even(asked, engine), "x".join(map(str, mesh.shape))
    if why:
        raise AutoDDLError(f"mesh: got {mesh} with {why}, or an even mesh={even!r}")
    if asked.search == HAP:
        raise AutoDDLError(
            f"mesh: got {mesh} with search={HAP!r}, which finds shares; give {even!r}"
        )
    lengths = cut_lengths(program)
    for axis in mesh.axes:
        if axis.shares and not any(length % units(axis.cut) == 0 for length in lengths):
            sums = range(axis.size + 1, MOST_UNITS + 1)
            would = [str(n) for n in sums if any(length % n == 0 for length in lengths)]
            told = ", ".join(would[:MOST_TOLD]) or f"none up to {MOST_UNITS}"
            raise AutoDDLError(
                f"mesh: got {mesh}, whose {units(axis.cut)} units divide no dim of any input or "
                f"parameter; sums of shares that do are {told}; give such shares, or mesh={even!r}"
            )


def cut_lengths(program: Program) -> set[int]:
    """Return the lengths of the dims that could be cut: those of inputs and parameters."""
    names = (*program.inputs, *(p.tensor for p in program.parameters))
    return {length for name in names for length in program.tensor[name].shape if length}
