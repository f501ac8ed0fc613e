"""Profiles with other rates between nodes: links within nodes stay as they are."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.profile_entries import Link, envelope

BITS = 8e-9  # a byte at 1 Gbit/s takes so many seconds


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
        structs.replace(link, beta_s_per_byte=beta(link)) if link.level == outer else link
        for link in profile.links
    ]
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in links:
        groups.setdefault((link.key, link.algorithm), []).append(link)
    kept = {id(link) for group in groups.values() for link in envelope(group)}
    return structs.replace(profile, links=tuple(link for link in links if id(link) in kept))
