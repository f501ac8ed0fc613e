"""What `optimize(trials=…)` and `python -m autoddl try` are asked for, and what is run again for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from autoddl.errors import AutoDDLError, shown

MOST_TRIALS, MOST_STEPS = 1 << 10, 1 << 20  # more is a slip of the finger
LIMIT_S = 120.0


@dataclass(frozen=True)
class Trials:
    """Run the `top` best plans before one is chosen: each for so many timed `steps`.

    A trial is ended after `timeout_s` seconds. The `folder` keeps what came of each, and its plan; a
    second call goes on from there.
    """

    top: int = 5
    steps: int = 20
    timeout_s: float = LIMIT_S
    folder: str | Path = "trials"


def read(given: int | Trials | None) -> Trials | None:
    """Return what is asked for, None for nothing.

    Raises:
        AutoDDLError: in one line, what is wrong and what is allowed.
    """
    if given is None:
        return None
    settings = given if isinstance(given, Trials) else Trials(given)
    limit_s = settings.timeout_s
    for name, value, right, allowed in (
        ("trials", settings.top, _is_whole(settings.top, MOST_TRIALS), f"are 1 to {MOST_TRIALS} plans"),
        ("trials: steps", settings.steps, _is_whole(settings.steps, MOST_STEPS),
         f"are 1 to {MOST_STEPS}"),
        ("trials: timeout_s", limit_s,
         isinstance(limit_s, int | float) and not isinstance(limit_s, bool) and limit_s > 0,
         "are seconds > 0"),
        ("trials: folder", settings.folder,
         isinstance(settings.folder, str | Path) and "\0" not in str(settings.folder), "are paths"),
    ):  # fmt: skip
        if not right:
            raise AutoDDLError(f"{name}: got {shown(value, 150)}; allowed {allowed}")
    return settings


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def own_script() -> tuple[str, ...]:
    """Return the words that this process was started with: a script, or "-m" and a module, and arguments.

    Raises:
        AutoDDLError: it runs neither.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return ("-m", spec.name.removesuffix(".__main__"), *sys.argv[1:])
    if file is None or not Path(file).is_file():
        raise AutoDDLError(
            "trials: this process runs no script, which ranks would run up to this call to make the "
            "graph themselves; put it into a file"
        )
    return (file, *sys.argv[1:])
