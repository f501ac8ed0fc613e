"""Parameters of one module among those of the model, for functions that several modules share."""

from __future__ import annotations


def part(params, module):
    """Return the parameters of one module, by their names inside it."""
    start = f"{module}."
    return {name[len(start) :]: t for name, t in params.items() if name.startswith(start)}
