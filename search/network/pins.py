"""States that a user pins: by patterns of the names of parameters and inputs.

{"*.fc1.weight": "B,S(0)"} on a mesh 2x4: fc1 weights whole on the first axis, cut on the second
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import OWN, B, NdSbp, S


class Pins:
    """The pins of a program on a mesh; `states` are by pattern."""

    def __init__(self, program: Program, mesh: Mesh, pin: Mapping[str, str]) -> None:
        self.program, self.mesh = program, mesh
        self.states = {pattern: self._parsed(pattern, text) for pattern, text in pin.items()}

    def of(self, name: str) -> NdSbp | None:
        """Return the state that a tensor is pinned to."""
        for pattern, state in self.states.items():
            if fnmatchcase(name, pattern):
                return state
        return None

    def _parsed(self, pattern: str, text: str) -> NdSbp:
        """Return the state that a pin asks for; what it says of axes of one device is void."""
        try:
            state = NdSbp.parse(text, self.mesh)
        except AutoDDLError as error:
            raise AutoDDLError(f"pin {shown(pattern, 100)}: {error}") from None
        for sbp in state:
            if sbp not in (B, OWN) and sbp is not S(sbp.dim if sbp.is_split else 0):
                raise AutoDDLError(
                    f"pin {shown(pattern, 100)}: {sbp} in {state}; parameters and inputs are B or "
                    "S<dim>, in the order of the mesh and without strides"
                )
        return NdSbp(s if n > 1 else B for s, n in zip(state, self.mesh.shape, strict=True))

    def check(self) -> None:
        """Refuse patterns that match nothing."""
        names = [*self.program.inputs, *(p.tensor for p in self.program.parameters)]
        for pattern in self.states:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise AutoDDLError(
                    f"pin {shown(pattern, 100)}: matches no parameter and no input; names are such as "
                    f"{', '.join(names[:4])}"
                )
