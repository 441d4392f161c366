# ruff: noqa: E501 (code that is looked for as it stands)
"""Bugs to plant in the core, one at a time, that the simulator must find: a check of the simulator, not of the core.

The first two are what the core once had (process sets that overlap; a join that joins twice); most others too.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.native.simulator import NATIVE


class Bug(NamedTuple):
    """Replacements of text in ``file`` of ``native/``, and what they break; ``more`` are in other files."""

    why: str
    file: str
    replacements: tuple[tuple[str, str], ...]
    more: tuple[tuple[str, str, str], ...] = ()


BUGS = {
    "sets-overlap": Bug(
        "one sum over all members hides who still reads the slots",
        "move.c",
        (
            (
                """        for (uint32_t m = 0; m < last->count && !status; m++)
            status = wait_finished(c, last, m, c->batches[c->last_set - 1]);
""",
                """        for (uint32_t sum = 0; !status;) {
            sum = 0;
            for (uint32_t m = 0; m < last->count; m++) sum += atomic_load(&last->finished[m]);
            if (sum >= c->batches[c->last_set - 1] * last->count) break;
            status = over(c);
            sched_yield();
        }
""",
            ),
            ("    if (through_slots) note_finished(", "    if (through_slots || in_place) note_finished("),
        ),
    ),
    "joins-twice": Bug(
        "a join that is waited for in slices joins anew when its round has ended between two",
        "engine.c",
        (("    int status = PENDING;\n    mark_blocked(c, NULL);", "    round = hora_join(c, 0);\n    int status = PENDING;\n    mark_blocked(c, NULL);"),),
    ),
    "fuses-anything": Bug(
        "operations that cannot be carried out together are",
        "table.c",
        (("return t->kind == ALLREDUCE && t->op != ADASUM &&", "return (t->kind == ALLREDUCE || t->op != ADASUM) &&"),),
    ),
    "counts-one-more": Bug(
        "a round looks at one member more than there is",
        "table.c",
        (("    for (uint32_t m = 0; m < s->count; m++) {\n        if (!arrived(", "    for (uint32_t m = 0; m <= s->count; m++) {\n        if (!arrived("),),
    ),
    "describes-too-early": Bug(
        "a rank that had joined comes back and describes its next round while others carry the last one out",
        "core.h",
        (("return &e->task[round & 1]; }", "return &e->task[round & 0]; }"),),
    ),
    "leaves-what-it-joined": Bug(
        "a rank leaves that has arrived at something which others then carry out without it",
        "table.c",
        (("set_at(c, e->set)->position[gone] >= 0) {", "set_at(c, e->set)->position[gone] >= 0 && !arrived(e, gone)) {"),),
    ),
    "given-away-too-early": Bug(
        "the place of an operation is given to another before all that points to it is gone",
        "engine.c",
        (
            ("    if (status != ABORTED && status != CLOSED) atomic_fetch_add(&e->finished, 1);\n", ""),
            ("    t->status = (uint32_t)status;\n", "    t->status = (uint32_t)status;\n    if (status != ABORTED && status != CLOSED) atomic_fetch_add(&e->finished, 1);\n"),
        ),
    ),
    "remembers-active": Bug(
        "who wanted an average over active ranks is not forgotten after a join",
        "engine.c",
        (("    memset(h->joined_active, 0, sizeof h->joined_active);\n", ""),),
    ),
    "rings-not": Bug("nobody is told that a round has closed", "table.c", (("    atomic_fetch_add(&h->progress, 1);\n    c->ring_wanted = true;", "    atomic_fetch_add(&h->progress, 1);"),)),
    "two-slots": Bug("a slot is filled again while a peer reads it", "core.h", (("    SLOTS = 3,", "    SLOTS = 2,"),)),
    "sizes-read-late": Bug(
        "the sizes of an allgather are read when the others may have gone on",
        "move.c",
        (
            (
                "            if (received) x.received[m] = received[k * (uint32_t)o->count + (uint32_t)m];\n",
                "            if (received) x.received[m] = arrival_at(e, o->set->members[m])->meta[kind == ALLGATHER ? k : (uint32_t)o->me];\n",
            ),
        ),
    ),
    "goes-on-after-death": Bug(
        "after a barrier that was given up the next is believed",
        "wait.c",
        (("    return over(c);\n}\n\n/* A member", "    return 0;\n}\n\n/* A member"), ("        return over(c);\n    }", "        return 0;\n    }")),
        (("engine.c", "        if (over(c) || lock(c)) break;", "        if (lock(c)) break;"),),
    ),
    "lets-go-in-no-order": Bug(
        "who gets the lock next need not see what was written under it",
        "wait.c",
        (("atomic_exchange_explicit(&c->header->lock, 0, memory_order_release)", "atomic_exchange_explicit(&c->header->lock, 0, memory_order_relaxed)"),),
    ),
    "lock-wakes-one": Bug(
        "who gets the lock after waiting does not know that others wait", "wait.c", (("take_lock(c, WANTED)", "take_lock(c, 0)"),)
    ),
    "one-payload": Bug(
        "what rides with an arrival has one place instead of two",
        "core.h",
        (("((round & 1) * (uint64_t)c->size + (uint64_t)r)", "((round & 0) * (uint64_t)c->size + (uint64_t)r)"),),
    ),
    "gone-before-unlock": Bug(
        "a rank that is killed while it leaves keeps the lock, and counts as one that left",
        "life.c",
        (("            leave_table(c, c->rank);\n", "            atomic_store(&self(c)->state, GONE_CLEAN);\n            leave_table(c, c->rank);\n"),),
    ),
    "last-join-closes-nothing": Bug(
        "what only waited for the last rank to join is never done",
        "engine.c",
        (("    bool open = close_ready(c);\n", "    bool open = h->joined_count < h->size && close_ready(c);\n"),),
    ),
    "sleeps-through": Bug(
        "a thread that saw another drive sleeps although something was scheduled since",
        "engine.c",
        (("    if ((done || something_scheduled(c)) &&", "    if (done &&"),),
    ),
}  # fmt: skip


def plant(bug: Bug, folder: Path) -> Path:
    """A copy of ``native/`` with this bug."""
    copy = folder / "native"
    shutil.copytree(NATIVE, copy)
    for file, old, new in [*((bug.file, old, new) for old, new in bug.replacements), *bug.more]:
        text = (copy / file).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
        (copy / file).write_text(text.replace(old, new))
    return copy
