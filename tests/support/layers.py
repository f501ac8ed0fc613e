"""Runs of equal layers of a program."""

from __future__ import annotations

from autoddl.sbp.program.blocks import Blocks, Run


def equal_runs(blocks: Blocks) -> tuple[Run, ...]:
    """Return the runs of layers with ops of equal kinds, tensors of equal forms and roles."""
    columns = blocks.columns
    return blocks.runs_of(columns.kind, columns.form * len(columns.roles) + columns.role)
