"""In which order stages compute, send and receive, where a message blocks both of its ends.

Generated scripts carry the source of `rendezvous_order`: it has to be plain Python.

Example: with 2 stages, 1 micro-batch and messages from 0 to 1 and back both stages keep to F0, its result
from 0 to 1, F0 of stage 1, B0, the gradient from 1 to 0, B0 of stage 0.
"""


def rendezvous_order(passes, links):
    """Return for every stage what it does in order: its `passes`, and messages between them.

    A pass is ("F" or "B", n), a message (kind, n, source, target). `links` are pairs of stages (earlier,
    later): an "F" message goes along each, a "B" message back. A message blocks both stages until both
    are there. So one order of all passes and messages is made here, as they would happen with a backward
    twice as long as a forward, and every stage keeps to it: the first message of what is left always
    has both its stages waiting, hence nothing can block for ever.
    """
    waiting = [list(each) for each in passes]
    found: list[list[tuple]] = [[] for _ in passes]
    free_at, done_at, sent = [0] * len(passes), {}, set()

    def messages_for(stage, kind, n):
        if kind == "F":
            return [("F", n, a, stage) for a, b in links if b == stage]
        return [("B", n, b, stage) for a, b in links if a == stage]

    while any(waiting):
        possible = []
        for stage in range(len(passes)):
            for place, (kind, n) in enumerate(waiting[stage][:2]):
                missing = [m for m in messages_for(stage, kind, n) if m not in sent]
                for message in missing:
                    source = message[2]
                    if (kind, n, source) in done_at:
                        start = max(free_at[source], free_at[stage])
                        possible.append((start, 0, message))
                if place == 0 and not missing:
                    possible.append((free_at[stage], 1, (kind, n, stage)))
        start, is_pass, action = min(possible)
        if is_pass:
            kind, n, stage = action
            free_at[stage] = done_at[action] = start + (1 if kind == "F" else 2)
            found[stage].append(waiting[stage].pop(0))
        else:
            sent.add(action)
            for stage in action[2:]:
                free_at[stage] = start
                found[stage].append(action)
    return found
