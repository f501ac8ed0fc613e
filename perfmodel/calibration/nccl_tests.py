"""Make a profile of logs of NVIDIA's nccl-tests: links of their tables, a device of the GPU's name.

NCCL takes another algorithm or protocol for other sizes: of each table the least of up to three lines is
fitted (alpha_beta). All-reduces of 2, 4 and 8 nodes whose first line takes 25, 35 and 45 µs are trees,
those of 25, 75 and 175 µs rings.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from autoddl import store
from autoddl.errors import AutoDDLError, shortened, shown
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.calibration import nccl_log
from autoddl.perfmodel.calibration.alpha_beta import fit_envelopes
from autoddl.perfmodel.calibration.measurements import links_of, sharing_of
from autoddl.perfmodel.calibration.nccl_log import LEVELS
from autoddl.perfmodel.collectives import TREE, coefficients
from autoddl.perfmodel.profile import ALIKE, Profile
from autoddl.perfmodel.profile_entries import Device, Link
from autoddl.sbp.boxing import ALL_REDUCE

logger = logging.getLogger(__name__)

_DEVICES = {
    "P100": "p100-aries",
    "V100": "v100-8x",
    "A100": "a100-2x16",
    "H100": "h100",
    "H200": "h200",
}
_UNKNOWN = _DEVICES["A100"]
_OF_ONE_SIZE = ("H200",)  # of others a name without a size may be of several
_GPU = re.compile(rf"\b({'|'.join(_DEVICES)})\b(?!.*\bMIG\b)")
_SIZE = re.compile(r"\b(\d+) ?GB\b")  # of memory, in GiB
_MOST_FILES = 100  # characters of their names


def profile_of(
    files: Iterable[str | Path], *, level: str | None = None, base: Profile | None = None,
    memory_bytes: int | None = None, name: str = "nccl-tests",
) -> Profile:  # fmt: skip
    """Return a profile of the links in nccl-tests' output files.

    Device and levels are those of `base`, else of the bundled profile of the GPU that the files name;
    of another GPU ops are priced as on an A100, with a warning. Its memory is what its name says (80GB),
    or `memory_bytes`.

    Raises:
        AutoDDLError: an unreadable or damaged file, or one of a single size; a level that the profile
            does not have; a GPU of unknown memory, or several.
    """
    paths, levels = [Path(file) for file in files], base.levels if base else LEVELS
    if level is not None and level not in levels:
        raise AutoDDLError(f"nccl-tests: level {shown(level, 100)}; levels are {', '.join(levels)}")
    logs = [nccl_log.read(_text(file), level=level, where=str(file)) for file in paths]
    for file, log in zip(paths, logs, strict=True):
        if len({point.size_bytes for point in log.points}) == 1:
            raise AutoDDLError(
                f"{store.told(file)}: a single message size, which does not tell latency from bandwidth; "
                "run the test with several, as -b 8 -e 1G -f 2"
            )
    points = [point for log in logs for point in log.points]
    gpus = tuple(dict.fromkeys(gpu for log in logs for gpu in log.gpus))
    strange = {point.level for point in points}.difference(levels)
    if strange:
        raise AutoDDLError(
            f"nccl-tests: groups over level {', '.join(sorted(strange))}; levels are "
            f"{', '.join(levels)}; say with --level which one was measured"
        )
    links = _with_trees(links_of(points, fit_envelopes), levels[-1])
    names = shortened(", ".join(file.name for file in paths), _MOST_FILES)
    return Profile(
        name=name,
        source=f"nccl-tests on {', '.join(gpus) or 'unnamed GPUs'}: {names}",
        kind="measured",
        device_type=base.device_type if base else "cuda",
        levels=levels,
        links=links,
        devices=base.devices if base else {ALIKE: _device(gpus, memory_bytes)},
        sharing={**(base.sharing if base else {}), **sharing_of(links, levels)},
    )


def _with_trees(links: Sequence[Link], innermost: str) -> tuple[Link, ...]:
    """Return the links with those all-reduces between nodes as trees whose latency grows like a tree's.

    That is where the first α of a tree varies no more with the number of nodes than that of a ring. Of
    one number they are taken for trees: NCCL prefers them there for all but the largest sizes.
    """
    kinds: dict[tuple[str, int, int], dict[int, Link]] = {}
    for link in sorted(links, key=lambda link: link.alpha_s):
        if link.collective == ALL_REDUCE and link.level != innermost:
            kind = (link.level, link.inner, link.groups)
            kinds.setdefault(kind, {}).setdefault(link.group_size, link)
    trees = {
        kind
        for kind, first in kinds.items()
        if _spread([_tree(link) for link in first.values()]) <= _spread(list(first.values()))
    }
    return tuple(
        _tree(link)
        if link.collective == ALL_REDUCE and (link.level, link.inner, link.groups) in trees
        else link
        for link in links
    )


def _spread(links: Sequence[Link]) -> float:
    """Return by which share of the largest α the smallest is less."""
    alphas = [link.alpha_s for link in links]
    return 1 - min(alphas) / max(alphas) if max(alphas) else 0.0


def _tree(link: Link) -> Link:
    """Return the same seconds as of a tree."""
    (ring, _), (tree, _) = (
        coefficients(ALL_REDUCE, link.group_size, 0.0, algorithm=name, inner=link.inner)
        for name in (link.algorithm, TREE)
    )
    interval = link.alpha_interval_s
    return replace(
        link,
        algorithm=TREE,
        alpha_s=link.alpha_s * ring / tree,
        alpha_interval_s=interval and (interval[0] * ring / tree, interval[1] * ring / tree),
    )


def _text(file: Path) -> str:
    where = f"nccl-tests file {store.told(file)}"
    try:
        return store.content(file, where, "name what nccl-tests printed").decode()
    except UnicodeDecodeError as error:
        raise AutoDDLError(
            f"{where}: no text ({error.reason}); name what nccl-tests printed"
        ) from None


def _device(gpus: tuple[str, ...], memory_bytes: int | None) -> Device:
    """Return the device for the GPU of a name such as NVIDIA H100 80GB HBM3.

    Raises:
        AutoDDLError: neither the name nor the caller says how much memory it has; there are several.
    """
    if len(gpus) > 1:
        raise AutoDDLError(
            f"nccl-tests: several GPUs ({', '.join(gpus)}); give the logs of one, or a profile that has "
            "its device (--device FILE)"
        )
    gpu = gpus[0] if gpus else ""
    known, size = _GPU.search(gpu), _SIZE.search(gpu)
    device = profiles.load(_DEVICES[known[1]] if known else _UNKNOWN).device
    if memory_bytes is None and known and size:
        memory_bytes = int(size[1]) << 30
    elif memory_bytes is None and known and known[1] in _OF_ONE_SIZE:
        memory_bytes = device.memory_bytes
    if memory_bytes is None:
        of = f"GPU {gpu}" if gpu else "GPUs whose names are not listed"
        raise AutoDDLError(
            f"nccl-tests: how much memory have {of}? say it with --memory, as --memory 24GiB, or give a "
            "profile that has the device (--device FILE)"
        )
    if known is None:
        logger.warning(
            "nccl-tests: GPU %s is not known; ops are priced as on %s",
            gpu or "without a name", device.name,
        )  # fmt: skip
    return replace(device, name=gpu or device.name, memory_bytes=memory_bytes)
