"""Lower a plan to source code: a standalone Python script that needs only the engine and NumPy.

`generate(plan, dialect)` returns the text. What is neutral is here: from ops and states to functions with
the model's own names. What differs from engine to engine is its dialect.

Example: the plan of an MLP on 2x2 devices gives `def forward(params, x)` with a line for each layer, a
`to_global` with a comment for each redistribution of the plan, and around it what trains.
"""

from autoddl.codegen.script import generate, write
from autoddl.codegen.templates import register_template

__all__ = ["generate", "register_template", "write"]
