"""Profiles made of one: with other kinds of devices, or other rates between nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Device, Kernel, Link, envelope

BITS = 8e-9  # a byte at 1 Gbit/s takes so many seconds


def of_two_kinds(base: Profile, slower: float = 2.0) -> Profile:
    """Return a profile of kinds "fast" and "slow", whose ops take so many times as long."""
    return of_kinds(base, {"fast": 1.0, "slow": slower}, "two kinds")


def of_kinds(base: Profile, times: Mapping[str, float], name: str) -> Profile:
    """Return a profile of these kinds, whose ops take so many times as long as those of `base`."""
    devices = {kind: slowed(base.device, factor, kind) for kind, factor in times.items()}
    return replace(base, name=name, devices=devices)


def slowed(device: Device, times: float, name: str) -> Device:
    """Return a device on which all ops take so many times as long; itself where that is once."""

    def kernel(known: Kernel) -> Kernel:
        return replace(
            known, overhead_s=known.overhead_s * times, bytes_per_s=known.bytes_per_s / times,
            flops_per_s={d: rate / times for d, rate in known.flops_per_s.items()},
        )  # fmt: skip

    if times == 1.0:
        return device
    return replace(
        device, name=name, op_overhead_s=device.op_overhead_s * times,
        memory_bytes_per_s=device.memory_bytes_per_s / times,
        peak_flops={d: rate / times for d, rate in device.peak_flops.items()},
        kernels={name: kernel(known) for name, known in device.kernels.items()},
    )  # fmt: skip


def at_rate(profile: Profile, gbit_per_s: float) -> Profile:
    """Return the profile with this β for all collectives between nodes: 20 Gbit/s is 0.4 ns a byte.

    That is so between two nodes; an all-to-all of whole nodes, whose GPUs share the links, is then too
    cheap, where `as_fast` keeps it dearer.
    """
    return _with_node_links(profile, lambda _: BITS / gbit_per_s)


def as_fast(profile: Profile, gbit_per_s: float) -> Profile:
    """Return the profile whose fastest collective between nodes has this rate; of one node as it is."""
    if not gbit_per_s:
        return profile
    outer = [link for link in profile.links if link.level == profile.levels[0]]
    factor = gbit_per_s / BITS * min(link.beta_s_per_byte for link in outer)
    return _with_node_links(profile, lambda link: link.beta_s_per_byte / factor)


def _with_node_links(profile: Profile, beta: Callable[[Link], float]) -> Profile:
    """Return the profile with other β between nodes, without the lines that are never fastest then."""
    outer = profile.levels[0]
    links = [
        replace(link, beta_s_per_byte=beta(link)) if link.level == outer else link
        for link in profile.links
    ]
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in links:
        groups.setdefault((link.key, link.algorithm), []).append(link)
    kept = {id(link) for group in groups.values() for link in envelope(group)}
    return replace(profile, links=tuple(link for link in links if id(link) in kept))
