"""Options of commands that plan: those of `autoddl.optimize`, by the same names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from autoddl.cli.app import PROG
from autoddl.cli.options import flag, option, with_options
from autoddl.errors import AutoDDLError, shown

Pairs = Sequence[tuple[str, str]]


class _Word(click.ParamType):
    """A word that stands for a value of `optimize`, "yes" for True; other words are whole numbers."""

    name = "word"

    def __init__(self, *, numbers: bool = False, **words: Any) -> None:
        self.numbers, self.words = numbers, words

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value in self.words:
            return self.words[value]
        if self.numbers:
            return click.INT.convert(value, param, ctx)
        return self.fail(f"{shown(value, 60)} is not one of {', '.join(self.words)}", param, ctx)


class _Pair(click.ParamType):
    """A name and what it is to have: "*.fc1.weight=B,S0"."""

    name = "pair"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        name, sign, of = value.rpartition("=")
        if not (name and sign and of):
            self.fail(f"{shown(value, 60)} is no pair such as {param.metavar}", param, ctx)
        return name, of


_SWITCH = _Word(yes=True, no=False, auto="auto")


# What `optimize` says of an option, shortened; defaults are its own, and it checks each value.
OTHERS = with_options(
    option("--cluster", "nodes x devices, of which all meshes are candidates; 3*v100x4+1*t4x4: of "
           "several kinds", None, "4x8"),
    option("--profile", f"a bundled one (`{PROG} profiles` lists them) or a file of fit-network", None,
           "NAME"),
    option("--memory-of", "of devices of a kind; may be repeated", _Pair(), "KIND=SIZE", multiple=True),
    option("--search", "exact, fast, another solver, or a baseline: 'data parallel'", None, "NAME"),
    option("--objective", "time of a step, sum of compute and communication, or communication", None,
           "NAME"),
    option("--engine", "oneflow; script: for codegen; none: beyond what an engine executes, to study",
           _Word(none=None, oneflow="oneflow", script="script"), "NAME", default="oneflow"),
    option("--budget", "of the search; what is left then is not tried", float, "SECONDS"),
    option("--evaluations", "budget in work, the same on every machine", float, "N"),
    option("--stop-gap", "end when so near to the bound: 0.01 is 1 %", float, "SHARE"),
    option("--seed", "the same plan again", int, "N"),
    option("--pin", "states by name pattern, of parameters, inputs, results of modules and ops, or "
           "gradients, or stages: '*.fc1.weight=B,S0', 'grad *.fc1.weight=!P', '*.blocks.3=stage 1'; may "
           "be repeated", _Pair(),
           "NAME=STATE", multiple=True),
    flag("--strict", "refuse op types without a rule"),
    flag("--allow-local-batchnorm", "BatchNorm may use the statistics of a device's part of the batch"),
    option("--dropout", "exact: masks of one device; sharded: each device draws its own", None, "NAME"),
    option("--recompute", "what is inside layers again in the backward pass: auto, layers, none", None,
           "NAME"),
    option("--pipeline", "stages, each on an equal part of the devices", _Word(numbers=True, auto="auto"),
           "N|auto"),
    option("--micro-batches", "parts of the batch that go through the stages", int, "N"),
    option("--schedule", "order of a script's stages: 1f1b, gpipe, searched", None, "NAME"),
    option("--compute-stream", "boxings are ops of the compute stream", _SWITCH, "yes|no|auto"),
    option("--duplex", "the batch as two halves in turn", _SWITCH, "yes|no|auto"),
    option("--fusion", "collectives in one launch on CUDA devices: so many MiB, so many of them", None,
           "MIB,N"),
    option("--shares", "unlike shares of cuts for devices of several kinds: auto, no",
           _Word(no=False, auto="auto"), "no|auto"),
    option("--strides", "cuts in turns of a few elements, for reshapes", _SWITCH, "yes|no|auto"),
    option("--parts", "stages on equal parts of the devices, free of the order of capture there, or on "
           "any; auto", None, "NAME"),
)  # fmt: skip
"""All but the mesh and the memory, of which `whatif` takes several."""
PLANNING = with_options(
    option("--mesh", "nodes x devices, or any factors; 2:3/1 has unlike shares", None, "4x8"),
    option("--memory", "of each device, 16GiB", None, "SIZE"),
    OTHERS,
)


_NAMES = (
    "mesh", "cluster", "profile", "memory", "search", "objective", "engine", "budget", "stop_gap", "seed",
    "pin", "strict", "allow_local_batchnorm", "dropout", "recompute", "pipeline", "micro_batches",
    "schedule", "compute_stream", "duplex", "fusion", "parts", "shares", "strides",
)  # fmt: skip
_ANY = "|".join(_NAMES)
# Such as pipeline=2 and search='exact'; "mesh: got" at the begin; micro_batches, which is no other word.
_VALUE, _LONG = r"""'[^']*'|"[^"]*"|[\w.]+""", "|".join(name for name in _NAMES if "_" in name)
_PYTHON = re.compile(rf"\b({_ANY})=({_VALUE})|^({_ANY})(?=: )|\b({_LONG})\b")
_TERMINAL = {"True": "yes", "False": "no", "None": "none"}


@contextmanager
def in_own_words() -> Iterator[None]:
    """Let errors of `optimize` name options as they are on the command line: "--pipeline 2"."""
    try:
        yield
    except AutoDDLError as error:
        error.args = tuple(_PYTHON.sub(_terminal, str(each)) for each in error.args)
        raise


def _terminal(found: re.Match[str]) -> str:
    name, value, alone, plain = found.groups()
    flag = "--" + (name or alone or plain).replace("_", "-")
    if value is None:
        return flag
    value = value[1:-1] if value[0] in "'\"" else _TERMINAL.get(value, value)
    return f"{flag} {shlex.quote(value)}"


def asked(
    *, pin: Pairs = (), memory_of: Pairs = (), evaluations: float | None = None, **options: Any
) -> dict[str, Any]:
    """Return the options of `optimize` that were given; the engine may be None.

    Raises:
        AutoDDLError: two of them say the same thing.
    """
    from autoddl import Budget

    given = {k: value for k, value in options.items() if value is not None or k == "engine"}
    work = None if evaluations is None else Budget(evaluations=evaluations)
    for name, other, value in (
        ("budget", "evaluations", work),
        ("memory", "memory-of", _by_name(memory_of, "memory-of")),
        ("pin", "pin", _by_name(pin, "pin")),
    ):
        if value is None:
            continue
        if name in given:
            raise AutoDDLError(f"--{name} and --{other}: both are given; leave one of them out")
        given[name] = value
    return given


def _by_name(pairs: Pairs, option: str) -> dict[str, str] | None:
    """Return pairs, if there are any, as a dict; raise AutoDDLError where a name is there twice."""
    found = dict(pairs)
    for name in found:
        if sum(name == other for other, _ in pairs) > 1:
            raise AutoDDLError(f"--{option} {shown(name, 60)}: given twice; leave one of them out")
    return found or None
