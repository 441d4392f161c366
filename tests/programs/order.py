"""In which order a rank submits what it has to, and waits for it: another on every rank, and never a deadlock."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.programs.program import Op


class Instance(NamedTuple):
    """One execution of an operation: the ``index``-th of its thread, counted over all steps."""

    op: Op
    step: int
    index: int


def order_of(
    instances: list[Instance], fresh: bool, window: int, chance: random.Random
) -> Iterator[tuple[str, Instance]]:
    """In which order this rank submits and waits, drawn at random: another on every rank, and never a deadlock.

    A rank waits for an operation only after it has submitted all that come before it in the list, so the first one that
    is not finished anywhere is always one that everybody has submitted or will. Before a name is submitted again it is
    waited for; operations without a name are submitted in order.
    """
    left = list(instances)
    flying: list[Instance] = []  # by index
    busy: set[tuple[object, ...]] = set()
    eager = chance.choice((0.5, 0.8, 0.95))
    while left or flying:
        ready, taken = [], set()
        for instance in left[:window]:
            op, place = instance.op, _place(instance, fresh)
            if place not in busy and place not in taken and (not op.blocking or instance is left[0]):
                ready.append((instance, place))
            taken.add(place)
        done = flying if not left else flying[: bisect.bisect(flying, left[0].index, key=lambda i: i.index)]
        if ready and (not done or chance.random() < eager):
            instance, place = chance.choice(ready)
            left.remove(instance)
            if instance.op.blocking:
                yield "block", instance
                continue
            if instance.op.name is not None:
                busy.add(place)
            bisect.insort(flying, instance, key=lambda i: i.index)
            yield "submit", instance
        else:
            instance = chance.choice(done)
            flying.remove(instance)
            busy.discard(_place(instance, fresh))
            yield "wait", instance


def _place(instance: Instance, fresh: bool) -> tuple[object, ...]:
    """Only one of the same place may be in flight, or, without a name, must keep its turn."""
    op = instance.op
    return op.prefix, op.set, op.name, instance.step if fresh and op.name is not None else 0
