"""In which order stages compute, send and receive: strict 1F1B that no rendezvous can block.

Generated scripts carry the source of these two functions: they have to be plain Python.
"""


def one_f_one_b(stage, stages, micro_batches):
    """Return what a stage computes in order: ("F", n) and ("B", n) of micro-batch n.

    Forwards fill the pipeline, then each is followed by a backward: at most `stages - stage`
    micro-batches are in flight.
    """
    ahead = min(stages - 1 - stage, micro_batches)
    order = [("F", n) for n in range(ahead)]
    for n in range(micro_batches):
        order += [("F", n + ahead)] if n + ahead < micro_batches else []
        order += [("B", n)]
    return order


def rendezvous_order(stages, micro_batches, links):
    """Return for every stage what it does in order: computations, and messages between them.

    A computation is ("F" or "B", n), a message (kind, n, source, target). `links` are pairs of stages
    (earlier, later): an "F" message goes along each, a "B" message back. A message blocks both stages
    until both are there. So one order of all computations and messages is made here, as they would
    happen with a backward twice as long as a forward, and every stage keeps to it: the first
    message of what is left always has both its stages waiting, hence nothing can block for ever.
    """
    waiting = [one_f_one_b(stage, stages, micro_batches) for stage in range(stages)]
    found: list[list[tuple]] = [[] for _ in range(stages)]
    free_at, done_at, sent = [0] * stages, {}, set()

    def messages_for(stage, kind, n):
        if kind == "F":
            return [("F", n, a, stage) for a, b in links if b == stage]
        return [("B", n, b, stage) for a, b in links if a == stage]

    while any(waiting):
        possible = []
        for stage in range(stages):
            for place, (kind, n) in enumerate(waiting[stage][:2]):
                missing = [m for m in messages_for(stage, kind, n) if m not in sent]
                for message in missing:
                    source = message[2]
                    if (kind, n, source) in done_at:
                        start = max(free_at[source], free_at[stage])
                        possible.append((start, 0, message))
                if place == 0 and not missing:
                    possible.append((free_at[stage], 1, (kind, n, stage)))
        start, is_computation, action = min(possible)
        if is_computation:
            kind, n, stage = action
            free_at[stage] = done_at[action] = start + (1 if kind == "F" else 2)
            found[stage].append(waiting[stage].pop(0))
        else:
            sent.add(action)
            for stage in action[2:]:
                free_at[stage] = start
                found[stage].append(action)
    return found
