"""How a plan was found: what came of each candidate and trial, and how far from the best it may be."""

from __future__ import annotations

from dataclasses import dataclass

from autoddl.json_files import Bytes, Count, Seconds, Share


@dataclass(frozen=True)
class Outcome:
    """What came of one candidate: a number of stages and micro-batches, and the mesh of each stage.

    `lower_bound_s` is None where not even a bound was computed, `step_s` without a plan; `note` says
    why there is none. Its search took so many `seconds` of the budget.
    """

    stages: Count
    micro_batches: Count
    mesh: str
    lower_bound_s: Seconds | None = None
    step_s: Seconds | None = None
    memory_bytes: Bytes | None = None
    note: str = ""
    compute_stream: bool = False
    duplex: bool = False
    seconds: Seconds = 0.0


@dataclass(frozen=True)
class PlanTrial:
    """What came of running one plan for a while: the median seconds of a step, or why there are none.

    `states` tells which plan it was (PlanValue.states).
    """

    states: str
    name: str
    predicted_s: Seconds
    measured_s: Seconds | None = None
    note: str = ""


@dataclass(frozen=True)
class PinCost:
    """The seconds of the best step that was found without one of the pins."""

    pin: str
    without_s: Seconds


@dataclass(frozen=True)
class SearchReport:
    """How a plan was found: by which solver, in how many seconds, how far from the best it may be.

    `gap` is (cost - lower bound) / cost of the assignment, before what overlaps is taken off;
    `searches` how many it took until the whole memory fitted. `outcomes` are those of all candidates
    (meshes, stages, micro-batches) if there were several; for `untried` ones no time was left. `trials`
    are those of the plans that were run before this one was chosen, as the fastest. `pins` are those
    without which a step would be shorter, by more than 1 %.
    """

    solver: str
    objective: str
    seed: int
    seconds: Seconds
    lower_bound_s: Seconds
    gap: Share
    searches: Count = 1
    outcomes: tuple[Outcome, ...] = ()
    untried: Count = 0
    trials: tuple[PlanTrial, ...] = ()
    pins: tuple[PinCost, ...] = ()
