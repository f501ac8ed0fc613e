"""Whole programs and paths of boxings on simulated devices, and predictions of single layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step_cost import StepPrices
from autoddl.perfmodel.timeline import Prediction, StepTimeline
from autoddl.sbp.layout import Layout
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.numpy_oracle.simulated_ops import on_one_device
from autoddl.sbp.numpy_oracle.simulated_tensors import Array, Locals
from autoddl.sbp.program import Program
from autoddl.sbp.rules.registry import OpView
from autoddl.sbp.shares import Cuts
from autoddl.sbp.state import NdSbp
from tests.support.simulated_boxings import run_boxing


def run_program(
    program: Program, values: Mapping[str, Array], *, updates: bool = False
) -> dict[str, Array]:
    """Run forward and backward of a captured step on one device, with the rules' references.

    `values` has the inputs and variables as whole arrays by tensor name; all tensors are returned.
    What ops update in place has its new value, parameters where `updates` are run, too.

    Raises:
        RuleError: an op type has no rule.
    """
    known = dict(values)
    for op in program.ops:
        if updates or op.phase != "optimizer":
            view = OpView.of(op, program.shapes(op))
            results = on_one_device(view, {name: known[tensor] for name, tensor in op.inputs})
            known |= {tensor: results[name] for name, tensor in op.operands if name in results}
    return known


def run_path(
    locals_: Sequence[Array], src: NdSbp, path: Sequence[NdSbp], shape: Sequence[int], mesh: Cuts
) -> Locals:
    """Perform the boxings of a path one after the other, from `src` on."""
    result, here = list(locals_), src
    for state in path:
        result, here = run_boxing(result, here, state, shape, mesh), state
    return result


def predict(mesh: Mesh, profile: Profile, layout: Layout) -> Prediction:
    """Return what a step takes in which ops and boxings overlap as Profile.overlap says.

    Raises:
        AutoDDLError: as StepPrices.step.
    """
    return StepTimeline(StepPrices(layout.program, mesh, profile), layout).prediction
