"""The profile that prices a plan again: what the user gives, else the bundled one that the plan names."""

from __future__ import annotations

from pathlib import Path

from autoddl.errors import AutoDDLError, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.profile import Profile
from autoddl.plan.value import PlanValue


def is_known(plan: PlanValue) -> bool:
    """Tell whether a plan can be priced with the profile that it names: a bundled one."""
    return plan.profile in profiles.bundled()


def check_prices(plan: PlanValue, what: str) -> None:
    """Raise AutoDDLError for a plan over shares whose file does not tell the kind of each device."""
    for part in plan.parts:
        if part.mesh.cuts != part.mesh.shape and part.kinds and not part.device_kinds:
            raise AutoDDLError(
                f"{what}: the plan is on mesh {part.mesh} of kinds {', '.join(part.kinds)}, and its file "
                "is of a version that does not tell which device is of which; plan again with "
                "autoddl.optimize"
            )


def profile_of(plan: PlanValue, given: str | Path | Profile | None, what: str) -> Profile:
    """Return the profile of a plan; `what` is asked for, and begins the error.

    Raises:
        AutoDDLError: none is given, and the plan's is not bundled; or as `check_prices`, or as
            perfmodel.profile.load.
    """
    check_prices(plan, what)
    if given is None and not is_known(plan):
        raise AutoDDLError(
            f"{what}: the plan was made with profile {shown(plan.profile)}, which is not bundled; give "
            "its file (--profile FILE)"
        )
    return profiles.load(plan.profile if given is None else given, device_type=plan.device)
