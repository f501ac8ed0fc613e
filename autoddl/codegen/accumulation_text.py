"""What differs in a script without stages that adds up the gradients of several micro-batches."""

from autoddl.codegen.text import BATCH_TEXT, CHECKPOINT_TEXT
from autoddl.codegen.text import MAIN_TEXT as _MAIN_TEXT

__all__ = ["BATCH_TEXT", "CHECKPOINT_TEXT", "MAIN_TEXT", "STEP_TEXT"]

STEP_TEXT = '''
def train_step(params, optimizer, micro_batches):
    """Run forward and backward on each micro-batch, then the update; return the mean loss."""
    losses = []
    for inputs in micro_batches:
        loss = loss_of(params, *inputs)
        (loss / MICRO_BATCHES).backward()
        losses.append(loss.detach())
    update(params, optimizer)
    return sum(losses) / MICRO_BATCHES
'''

MAIN_TEXT = _MAIN_TEXT.replace(
    "    for step, inputs in zip(range(args.steps), batches(args.data), strict=False):\n"
    "        loss = train_step(params, optimizer, *inputs)\n",
    "    stream = batches(args.data)\n"
    "    for step in range(args.steps):\n"
    "        micro_batches = itertools.islice(stream, MICRO_BATCHES)\n"
    "        loss = train_step(params, optimizer, micro_batches)\n",
)
