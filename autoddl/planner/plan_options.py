"""What `optimize` is asked for: one value, each field with what is allowed, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from autoddl.errors import AutoDDLError, shown
from autoddl.planner.stages.stage_order import SCHEDULES
from autoddl.planner.stages.stage_pins import stage_of
from autoddl.sbp.mesh import MOST_DEVICES
from autoddl.sbp.rules.batchnorm import LOCAL_STATISTICS
from autoddl.sbp.rules.dropout import LOCAL_MASKS
from autoddl.search.baselines import BASELINES
from autoddl.search.budget import TWENTY_SECONDS, Budget
from autoddl.search.reductions.objective import COMMUNICATION, OBJECTIVES, TIME
from autoddl.search.solvers.named import SOLVERS

AUTO = "auto"  # let the planner choose
EQUAL, ANY = "equal", "any"  # sizes of stages
FREE = "free"  # equal ones of ops that need not follow each other
LAYERS = "layers"  # all are computed again
EXACT, SHARDED = "exact", "sharded"  # masks of dropout: one device's, or drawn shard by shard
MOST_MIB, MOST_FUSED = 1024, 2048  # of a launch; OneFlow counts bytes in 32 bits
SEARCHES = (*SOLVERS, *BASELINES)


def _where(default: Any, allowed: str, right: Callable[[Any], bool]) -> Any:
    """Return a field of values that are `right`, which the error for others calls `allowed`."""
    return field(default=default, metadata={"allowed": allowed, "right": right})


def _one_of(default: str, names: tuple[str, ...]) -> Any:
    return _where(default, f"are {', '.join(names)}", lambda v: isinstance(v, str) and v in names)


def _flag(default: bool | str, *words: str) -> Any:
    *others, last = [*map(repr, words), "True", "False"]
    return _where(
        default, f"are {', '.join(others)} and {last}",
        lambda v: isinstance(v, bool) or (isinstance(v, str) and v in words),
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any, least: int, most: int = 1 << 63) -> bool:
    return _is_number(value) and isinstance(value, int) and least <= value <= most


def _fusion_of(value: Any) -> tuple[int, int] | None:
    """Return the MiB and the number of collectives of a launch, if a text says so."""
    found = re.fullmatch(r"(\d{1,4}),(\d{1,5})", value) if isinstance(value, str) else None
    if found is None:
        return None
    size, number = map(int, found.groups())
    return (size, number) if size <= MOST_MIB and 1 <= number <= MOST_FUSED else None


_is_count = partial(_is_whole, least=1, most=MOST_DEVICES)


@dataclass(frozen=True)
class Options:
    """The options of `autoddl.optimize`, which says what each means.

    What mesh, cluster, profile and memory mean depends on each other: `request.read` reads them.

    Raises:
        AutoDDLError: in one line, which option is wrong, and what is allowed.
    """

    mesh: Any = None
    cluster: Any = None
    profile: Any = None
    memory: Any = None
    search: str = _one_of("exact", SEARCHES)
    objective: str = _one_of(TIME, OBJECTIVES)
    budget: Budget = TWENTY_SECONDS
    stop_gap: float = _where(
        0.0, "are 0 (proven best) to below 1", lambda v: _is_number(v) and 0 <= v < 1
    )
    seed: int = _where(0, "are whole numbers >= 0", partial(_is_whole, least=0))
    pin: Mapping[str, str] | None = None
    strict: bool = _flag(False)
    allow_local_batchnorm: bool = _flag(False)
    dropout: str = _one_of(EXACT, (EXACT, SHARDED))
    recompute: str = _one_of(AUTO, (AUTO, LAYERS, "none"))
    pipeline: int | str | None = _where(
        None, "is 'auto' or a number of stages from 1 on",
        lambda v: v is None or v == AUTO or _is_count(v),
    )  # fmt: skip
    micro_batches: int | None = _where(
        None, "is a whole number from 1 on", lambda v: v is None or _is_count(v)
    )
    schedule: str | None = _where(
        None, f"are {', '.join(SCHEDULES)}", lambda v: v is None or v in SCHEDULES
    )  # fmt: skip
    compute_stream: bool | str = _flag(AUTO, AUTO)
    duplex: bool | str = _flag(False, AUTO)
    fusion: str | None = _where(
        None, f"is 'MIB,NUMBER', up to {MOST_MIB} MiB and {MOST_FUSED} collectives, such as '16,64'",
        lambda v: v is None or _fusion_of(v) is not None,
    )  # fmt: skip
    shares: bool | str = _where(
        AUTO, "are 'auto' and False", lambda v: v is False or (isinstance(v, str) and v == AUTO)
    )  # fmt: skip
    strides: bool | str = _flag(AUTO, AUTO)
    parts: str = _where(
        AUTO,
        f"are '{AUTO}', '{EQUAL}', '{FREE}' and '{ANY}'",
        lambda v: v in (AUTO, EQUAL, FREE, ANY),
    )
    progress: Callable[[float, float], None] | None = _where(  # noqa: RUF009 it returns a field
        None, "is a function of two numbers", lambda v: v is None or callable(v)
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata and not each.metadata["right"](value):
                allowed = each.metadata["allowed"]
                raise AutoDDLError(f"{each.name}: got {shown(value, 150)}; allowed {allowed}")
        object.__setattr__(self, "budget", Budget.of(self.budget))
        _check_pins(self.pin)

    @property
    def timed(self) -> bool:
        """Tell whether compute counts, not communication alone."""
        return self.objective != COMMUNICATION

    @property
    def launch(self) -> tuple[int, int] | None:
        """Return the MiB and the number of collectives of a launch, if that was asked for."""
        return _fusion_of(self.fusion)

    @property
    def allow(self) -> frozenset[str]:
        """Return the approximations of rules that are allowed."""
        statistics = {LOCAL_STATISTICS} if self.allow_local_batchnorm else set[str]()
        return frozenset(statistics | ({LOCAL_MASKS} if self.dropout == SHARDED else set()))


def _check_pins(pin: Any) -> None:
    """Raise AutoDDLError for what are no name patterns with states."""
    if pin is not None and not isinstance(pin, Mapping):
        raise AutoDDLError(
            f"pin: got {shown(pin, 150)}; give a dict of name patterns and states, "
            "{'*.fc1.weight': 'B,S0'}"
        )
    for pattern, state in (pin or {}).items():
        if not isinstance(pattern, str) or not isinstance(state, str):
            raise AutoDDLError(
                f"pin {shown(pattern, 100)}: got {shown(state, 150)}; give a name pattern and a state "
                "such as 'B,S0'"
            )
        if state.strip().startswith("stage") and stage_of(state) is None:
            raise AutoDDLError(
                f"pin {shown(pattern, 100)}: got {shown(state, 150)}; a stage is a number from 0 on, "
                "'stage 1'"
            )
