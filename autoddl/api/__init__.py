"""What users call: `optimize` returns a `Plan`, whose methods run, draw, write and keep it."""

from autoddl.api.planning import optimize, resume
from autoddl.api.user_plan import Plan, load

__all__ = ["Plan", "load", "optimize", "resume"]
