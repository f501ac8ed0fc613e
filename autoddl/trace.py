"""The predicted timeline of a plan for Perfetto: `python -m autoddl trace plan.json -o trace.json`.

Open the file in ui.perfetto.dev or chrome://tracing. A plan with stages has a process per stage, with
the passes of all micro-batches and the transfers; one without has the ops and boxings of a device,
which are priced again with the plan's profile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from autoddl.errors import AutoDDLError
from autoddl.make_plan import layout_of
from autoddl.perfmodel import profile as profiles
from autoddl.perfmodel.chrome_trace import write_chrome_trace
from autoddl.perfmodel.pipeline import Span, Timeline
from autoddl.perfmodel.pipeline_step import COMPUTE
from autoddl.perfmodel.profile import Profile
from autoddl.perfmodel.step import step_cost
from autoddl.perfmodel.timeline import DEVICE, simulate, works
from autoddl.plan import load

if TYPE_CHECKING:
    from autoddl.plan import Plan

_PROG = "python -m autoddl trace"
_EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0, or 2 for bad input, with one line that says what is wrong."""
    try:
        args = _parser().parse_args(sys.argv[1:] if argv is None else argv)
        timeline = write(load(args.plan), args.output, profile=args.profile)
    except AutoDDLError as error:
        print(f"trace: {error}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    print(
        f"wrote {args.output}: a step of {timeline.step_s * 1e3:.3g} ms; open it in ui.perfetto.dev"
    )
    return 0


def write(plan: Plan, path: str | Path, *, profile: str | Path | Profile | None = None) -> Timeline:
    """Write the predicted timeline of a plan as Chrome/Perfetto JSON, and return it.

    Raises:
        AutoDDLError: the file can't be written, or as `timeline_of`.
    """
    timeline = timeline_of(plan, profile)
    phases = {} if plan.program is None else {op.name: op.phase for op in plan.program.ops}
    try:
        write_chrome_trace(timeline, path, categories=phases if plan.pipeline is None else {})
    except OSError as error:
        raise AutoDDLError(f"trace file {path}: {error.strerror}; give another") from None
    return timeline


def timeline_of(plan: Plan, profile: str | Path | Profile | None = None) -> Timeline:
    """Return the predicted timeline of a plan.

    A plan without stages is priced with `profile`, by default the bundled one that it names.

    Raises:
        AutoDDLError: the plan has no seconds or no program, or there is no such profile.
    """
    if plan.pipeline is not None:
        return plan.pipeline.timeline
    program = plan.program
    if program is None:
        raise AutoDDLError("trace: the plan holds no program; plan again with autoddl.optimize")
    known = _profile(plan, profile)
    layout = layout_of(plan)
    cost = step_cost(program, plan.mesh, known, layout)
    found = simulate(
        works(program, plan.mesh, known, layout, cost, compute_stream=plan.compute_stream)
    )
    streams = {DEVICE: COMPUTE}
    spans = tuple(
        Span(s.name, 0, streams.get(s.resource, s.resource), s.start_s, s.end_s) for s in found
    )
    return Timeline(spans, max((s.end_s for s in spans), default=0.0), (1,), (0,))


def _profile(plan: Plan, given: str | Path | Profile | None) -> Profile:
    if given is None and plan.profile not in profiles.bundled():
        raise AutoDDLError(
            f"trace: the plan was made with profile {plan.profile!r}, which is not bundled; give its "
            "file (--profile FILE)"
        )
    return profiles.load(plan.profile if given is None else given, device_type=plan.device)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AutoDDLError(f"{message}; see `{_PROG} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROG, description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("plan", help="file that Plan.save wrote")
    add("-o", "--output", type=Path, default=Path("trace.json"), metavar="FILE")
    add("--profile", metavar="FILE", help="of a plan without stages, if it is not a bundled one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
