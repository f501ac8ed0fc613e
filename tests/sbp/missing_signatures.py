"""What a rule lacks: the signatures that are right by trial, without those that it has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autoddl.sbp.numpy_oracle.simulated_ops import valid_signatures
from autoddl.sbp.numpy_oracle.trial import agree
from autoddl.sbp.rules.registry import OpView, signatures
from autoddl.sbp.state import B, Sbp


def missing_signatures(
    view: OpView, size: int, rng: np.random.Generator
) -> tuple[Mapping[str, Sbp], ...]:
    """Return the one-axis signatures that are right on `size` devices though the rule lacks them.

    Inputs that are not read, or of which only the shape is, are B.

    Raises:
        RuleError: the op type has no rule.
    """
    known = signatures(view)
    blank = dict.fromkeys(view.inputs + view.outputs, B)
    return tuple(
        {**blank, **signature}
        for signature in valid_signatures(view, size, rng)
        if not any(agree(signature, ours) for ours in known)
    )
