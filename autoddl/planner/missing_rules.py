"""Ops that no rule knows: how the engine would split them, and what is said of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping

import numpy as np

from autoddl.engine.interface import OwnSignatures
from autoddl.errors import RuleError
from autoddl.sbp.program import Program
from autoddl.sbp.rules.registry import find, is_built_in
from autoddl.search.network.choices import SignatureLists

Ask = Callable[[Program, Collection[int]], OwnSignatures]
"""How an engine that is installed is asked (engine.interface.Engine.signatures)."""


def engine_signatures(
    program: Program, sizes: Collection[int], ask: Ask | None, *, strict: bool, title: str
) -> SignatureLists | None:
    """Warn once of all op types without a rule and return how the engine would split them.

    `sizes` are those of the mesh axes, `title` is what the engine is called. Where none can be asked
    these ops are planned all-broadcast. It is asked about ops with a user's rule, too, so that what it
    refuses can be left out.

    Raises:
        RuleError: in strict mode, if there are any.
    """
    unknown = unknown_types(program)
    how = "register rules with autoddl.register_rule(autoddl.OpRule(…))"
    if unknown and strict:
        raise RuleError(f"op types without a rule: {_counted(unknown)}; {how} to let them be split")
    if ask is None:
        if unknown:
            warnings.warn(
                f"op types without a rule are planned all-broadcast: {_counted(unknown)}; {how} to "
                "let them be split",
                stacklevel=5,
            )
        return None
    if not unknown and all(map(is_built_in, program.columns.types)):
        return None
    lists = ask(program, sizes)
    parts = []
    listed = {name: count for name, count in unknown.items() if name not in lists.whole}
    if listed:
        parts.append(f"{title}'s own cuts, not proven by autoddl, for {_counted(listed)}")
    for reason in dict.fromkeys(lists.whole.values()):
        types = {name: n for name, n in unknown.items() if lists.whole.get(name) == reason}
        parts.append(f"all-broadcast for {_counted(types)} ({reason})")
    if unknown:
        warnings.warn(
            f"op types without a rule are planned with {'; '.join(parts)}; {how} to have them proven",
            stacklevel=5,
        )
    return lists.signatures


def _counted(types: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in types.items())


def unknown_types(program: Program) -> dict[str, int]:
    """Return the op types without a rule, with how often each occurs, most frequent first."""
    columns = program.columns
    every = zip(columns.types, np.bincount(columns.type).tolist(), strict=True)
    counts = {name: count for name, count in every if find(name) is None}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
