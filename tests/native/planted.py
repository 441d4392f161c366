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
            status = wait_count(c, &finished_of(last)[m], &last->sleepers, c->batches[c->last_set - 1]);
""",
                """        for (uint32_t sum = 0; !status;) {
            sum = 0;
            for (uint32_t m = 0; m < last->count; m++) sum += atomic_load(&finished_of(last)[m]);
            if (sum >= c->batches[c->last_set - 1] * last->count) break;
            status = over(c);
            sched_yield();
        }
""",
            ),
            ("    if (through_slots) count_up(", "    if (through_slots || in_place) count_up("),
        ),
    ),
    "sums-too-early": Bug(
        "a rank sums what another of its host has not copied in yet",
        "carry.c",
        (("&s->sleepers, k + 1);\n            if (status)", "&s->sleepers, k);\n            if (status)"),),
    ),
    "sends-too-early": Bug(
        "a leader sends a slice before all ranks of its host have summed their part",
        "exchange.c",
        (("if (number >= (step ? j->summed : j->ready)) continue;", "if (number >= (step ? j->summed : j->layout.slices)) continue;"),),
    ),
    "takes-too-early": Bug(
        "a rank takes one slice more than has come",
        "carry.c",
        (("    take_slices(c, t, e, there);", "    take_slices(c, t, e, there + 1);"),),
    ),
    "nobody-knocks": Bug(
        "a leader that waits for its ranks' sums is not woken",
        "carry.c",
        (("if (all && atomic_exchange(&c->header->hungry, 0)) knock(c);", "atomic_store(&c->header->hungry, 0);"),),
    ),
    "knocks-in-vain": Bug(
        "the thread of the connections says that it sleeps after it looked whether somebody knocked",
        "link.c",
        (
            ("        atomic_store(&l->c->header->asleep, 1);\n        int n = atomic_exchange(&l->c->header->knocked, 0) ? 0 :", "        bool heard = atomic_exchange(&l->c->header->knocked, 0);\n        atomic_store(&l->c->header->asleep, 1);\n        int n = heard ? 0 :"),
        ),
    ),
    "one-slice-too-many": Bug(
        "a run of whole slices has one more, which is empty",
        "carry.c",
        (("        uint32_t slices = (uint32_t)((count + whole - 1) / whole);", "        uint32_t slices = (uint32_t)((count + whole) / whole);"),),
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
        (("return heap_at(c, e->task[round & 1].at); }", "return heap_at(c, e->task[round & 0].at); }"),),
    ),
    "leaves-what-it-joined": Bug(
        "a rank leaves that has arrived at something which others then carry out without it",
        "table.c",
        (("position_of(c, set_at(c, e->set))[gone] >= 0) {", "position_of(c, set_at(c, e->set))[gone] >= 0 && !arrived(c, e, gone)) {"),),
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
                "            if (received) x.received[m] = meta_of(o->c, e, o->first->round, members_of(o->c, o->set)[m])[kind == ALLGATHER ? k : (uint32_t)o->me];\n",
            ),
        ),
    ),
    "goes-on-after-death": Bug(
        "after a barrier that was given up the next is believed",
        "wait.c",
        (("    return over(c);\n}\n\n/* A word", "    return 0;\n}\n\n/* A word"), ("        return over(c);\n    }", "        return 0;\n    }")),
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
        (("+ c->header->here) + (round & 1) * c->header->here;", "+ c->header->here) + (round & 0) * c->header->here;"),),
    ),
    "gone-before-unlock": Bug(
        "a rank that is killed while it leaves keeps the lock, and counts as one that left",
        "life.c",
        (("            leave_table(c, c->rank);\n", "            atomic_store(&peer_at(c, c->rank)->state, GONE_CLEAN);\n            leave_table(c, c->rank);\n"),),
    ),
    "last-join-closes-nothing": Bug(
        "what only waited for the last rank to join is never done",
        "engine.c",
        (("    bool open = close_ready(c);\n", "    bool open = h->joined_count < h->size && close_ready(c);\n"),),
    ),
    "join-overtakes": Bug(
        "hosts above hear of a join before what it made complete",
        "tree.c",
        (
            ("        t->last_joined = rank;\n", "        t->last_joined = rank;\n        if (t->above >= 0) say(l, OWN, FRAME_JOIN, 0, &value, 8);\n"),
            ("    if (t->above >= 0) say(l, OWN, FRAME_JOIN, 0, &value, 8);\n    end_join(l);", "    if (t->above >= 0 && value == UINT64_MAX) say(l, OWN, FRAME_JOIN, 0, &value, 8);\n    end_join(l);"),
        ),
    ),
    "part-not-awaited": Bug(
        "once somebody has joined, hosts are not waited for",
        "tree.c",
        (("        if (!joined_part(l, p->set, __builtin_ctz(left))) return false;\n", "        {}\n"),),
    ),
    "number-of-another-shape": Bug(
        "an operation is told by its number although it is another one now",
        "hosts.c",
        (("known->is.fingerprint == is.fingerprint && ", ""),),
    ),
    "told-after-the-end": Bug(
        "a host that had not heard of an operation's end yet is counted in its next round",
        "tree.c",
        (("    if (ended_since(t, is->key, seen) || somebody_gone(t, s)) return NULL;", "    if (somebody_gone(t, s)) return NULL;"),),
    ),
    "fails-over-the-last": Bug(
        "a round that fails without a rank takes the place of the last one that this rank has not looked at yet",
        "table.c",
        (("    atomic_store(&e->round, round + 2);", "    atomic_store(&e->round, round + 1);"),),
    ),
    "sizes-do-not-ride": Bug(
        "an allgather of nothing is over on one rank, and its next sizes are read by others as those of this one",
        "table.c",
        (("bytes <= RIDES_ALWAYS || sizes || ", "bytes <= RIDES_ALWAYS || "),),
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
