"""From timed ops to the device of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from autoddl.calibrate.device.op_timing import OpCampaign, OpSettings, job_for
from autoddl.calibrate.probe_launches import one_of
from autoddl.engine.interface import Engine
from autoddl.perfmodel.calibration.kernel_fits import Timed, device_of
from autoddl.perfmodel.profile import Device, Profile

_LEVEL = "gpu"


def measured_device(engine: Engine, nproc_per_node: int, *, quick: bool = False) -> Device:
    """Time an engine's ops on `nproc_per_node` ranks of this machine at once; return the device.

    Raises:
        LaunchError: a rank failed, or the time limit was reached.
        AutoDDLError: bad arguments or no engine.
    """
    settings = OpSettings(nproc_per_node, quick)
    campaign = OpCampaign(settings)
    campaign.run(job_for(engine, settings))
    return device_from(campaign.ops, nproc_per_node)


def device_from(ops: Sequence[Timed], ranks: int) -> Device:
    """Return the device on which one of so many ranks of this machine has timed the ops."""
    return device_of(ops, **one_of(ranks))


def profile_with(
    device: Device, settings: OpSettings, *, name: str, into: Profile | None
) -> Profile:
    """Return the profile `into` with the measured device, or one that has only this."""
    command = f"python -m autoddl fit-device --nproc-per-node {settings.ranks}"
    command += " --quick" * settings.quick
    if into is not None:
        return structs.replace(into, device=device, source=f"{into.source}; device: {command}")
    return Profile(
        name=name,
        source=f"measured with {command}",
        kind="measured",
        device_type="cpu",
        levels=(_LEVEL,),
        links=(),
        device=device,
    )
