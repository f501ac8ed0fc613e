"""Train ten steps with each generated script of a folder: `generated_scripts.py FOLDER`.

CASE.py is a script, CASE.weights the model's state dict, CASE.npz the batches one behind the other. Adds
the losses, or the line of an error, to rank<N>.jsonl.
"""

import itertools
import json
import runpy
import sys
from pathlib import Path

import oneflow as flow

STEPS = 10


def losses(case):
    """Return the losses of ten steps."""
    script = runpy.run_path(str(case))
    params = script["load_parameters"](str(case.with_suffix(".weights")))
    optimizer = script["make_optimizer"](params, rate_of(case))
    schedule = script["make_schedule"](optimizer) if "make_schedule" in script else None
    batches, found = script["batches"](str(case.with_suffix(".npz"))), []
    for _ in range(STEPS):
        if "MICRO_BATCHES" in script:
            loss = script["train_step"](
                params, optimizer, list(itertools.islice(batches, script["MICRO_BATCHES"]))
            )
        else:
            loss = script["train_step"](params, optimizer, *next(batches))
        found.append(float(script["as_whole"](loss)))
        if schedule is not None:
            schedule.step()
    return found


def rate_of(case):
    """Return the default of --learning-rate."""
    (line,) = [line for line in case.read_text().splitlines() if '"--learning-rate"' in line]
    return float(line.rpartition("default=")[2].rstrip(")"))


folder = Path(sys.argv[1])
with (folder / f"rank{flow.env.get_rank()}.jsonl").open("a") as file:
    for case in sorted(folder.glob("*.py")):
        print(case.stem, flush=True)  # which one it was, should ranks be killed or hang
        file.write(json.dumps([case.stem, losses(case)]) + "\n")
        file.flush()
