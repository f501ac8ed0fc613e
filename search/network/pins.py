"""States that a user pins: by patterns of the names of parameters and inputs.

{"*.fc1.weight": "B,S(0)"} on a mesh 2x4: fc1 weights whole on the first axis, cut on the second
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from autoddl.errors import AutoDDLError, shown
from autoddl.sbp.canonical import apart, canonical
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.program import Program
from autoddl.sbp.state import OWN, B, NdSbp, Sbp


class Pins:
    """The pins of a program on a mesh; `states` are by pattern."""

    def __init__(
        self, program: Program, mesh: Mesh, pin: Mapping[str, str], *, strides: bool = False
    ) -> None:
        self.program, self.mesh, self.strides = program, mesh, strides
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
            plain = sbp in (B, OWN) or (sbp.is_split and not sbp.turn and sbp.stride is None)
            if not (plain or (self.strides and sbp.is_split and not sbp.turn)):
                without = "" if self.strides else " and, for this engine, without strides"
                raise AutoDDLError(
                    f"pin {shown(pattern, 100)}: {sbp} in {state}; parameters and inputs are B or "
                    f"S<dim>, in the order of the mesh{without}"
                )
        return NdSbp(s if n > 1 else B for s, n in zip(state, self.mesh.shape, strict=True))

    def strided(self) -> Iterator[tuple[str, tuple[Sbp, ...]]]:
        """Yield the tensors that are pinned to states with strides, with how each axis cuts alone.

        Raises:
            AutoDDLError: strides do not divide what they cut.
        """
        names = [*self.program.inputs, *(p.tensor for p in self.program.parameters)]
        pinned = [(name, self.of(name)) for name in names] if self.states else []
        for name, state in pinned:
            if state is not None and any(sbp.stride is not None for sbp in state):
                shape, mesh = self.program.tensor[name].shape, self.mesh.cuts
                try:
                    cuts = apart(canonical(state, shape, mesh), shape, mesh)
                except AutoDDLError as error:
                    raise AutoDDLError(f"pin of {name}: {error}") from None
                if cuts is None:
                    raise AutoDDLError(
                        f"pin of {name}: the cuts of {state} fall across each other; give strides of "
                        "which one divides the other"
                    )
                yield name, cuts

    def check(self) -> None:
        """Refuse patterns that match nothing."""
        names = [*self.program.inputs, *(p.tensor for p in self.program.parameters)]
        for pattern in self.states:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise AutoDDLError(
                    f"pin {shown(pattern, 100)}: matches no parameter and no input; names are such as "
                    f"{', '.join(names[:4])}"
                )
