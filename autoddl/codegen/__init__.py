"""Generated code: a plan as a standalone Python script that needs only OneFlow and NumPy."""

from autoddl.codegen.ops import register_template
from autoddl.codegen.script import generate

__all__ = ["generate", "register_template"]
