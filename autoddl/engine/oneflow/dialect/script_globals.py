"""The names that a script has besides those of the model's functions and repeated tables."""

from __future__ import annotations

_IMPORTS = {"argparse", "itertools", "logging", "np", "flow", "F"}
_FUNCTIONS = {
    "as_global", "as_whole", "batches", "boxes", "compute", "exchange", "expect", "inside",
    "load_parameters", "main", "make_optimizer", "make_schedule", "move", "one_f_one_b", "part",
    "rendezvous_order", "routes", "run_backward", "run_forward", "save_checkpoint", "train_step",
    "transfer_boxes", "update", "whole_where_partial",
}  # fmt: skip
_TABLES = {
    "ARGUMENTS", "B", "BUFFERS", "DEVICE", "DONE", "FORWARD", "INPUTS", "MICRO_BATCHES", "ORDER", "P",
    "PARAMETERS", "PLACEMENT", "PLACEMENTS", "RANKS", "RECOMPUTED", "RESULTS", "ROUTES", "S",
    "STAGE", "STAGES", "TRANSFERS", "UNPLANNED", "WHOLE",
}  # fmt: skip
_MISTAKABLE = {"INPUT", "RANK"}  # not there, but too like those that are

GLOBALS = frozenset(_IMPORTS | _FUNCTIONS | _TABLES | _MISTAKABLE)
