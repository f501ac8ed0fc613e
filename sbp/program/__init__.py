"""The intermediate representation: a captured training step as a frozen value."""

from autoddl.sbp.program.ir import Program
from autoddl.sbp.program.ops_and_tensors import (
    ITEM_BYTES,
    PHASES,
    ROLES,
    Op,
    Parameter,
    ParameterGroup,
    Tensor,
    freeze,
)
from autoddl.sbp.program.program_json import FORMAT_VERSION

__all__ = [
    "FORMAT_VERSION",
    "ITEM_BYTES",
    "PHASES",
    "ROLES",
    "Op",
    "Parameter",
    "ParameterGroup",
    "Program",
    "Tensor",
    "freeze",
]
