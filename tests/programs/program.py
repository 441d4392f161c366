"""Programs drawn at random: what every rank does, as data. A seed and a number give the same program everywhere.

A *program* is a world of process sets and a list of *phases*. A phase is a list of operations for each thread, run
through ``steps`` times; one that ends in a join has a *quota* for each rank, which takes part in only so many of them.
Each program has a taste of its own (a few kinds, types and sizes, much or little shared memory, …): what only goes
wrong where certain things come together is met sooner than by programs that all have a little of everything.

Nothing here imports Hora, or a framework.
"""

from __future__ import annotations

import math
import random
import struct
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = (*INTEGERS, *FLOATS, "bool")
ITEM_BYTES = dict(zip(DTYPES, (1, 1, 2, 4, 8, 2, 2, 4, 8, 1), strict=True))
REDUCTIONS = ("sum", "average", "min", "max", "product", "adasum")

INLINE, CHUNK = 8192, 256 << 10  # where the C core's ways of moving data meet; between hosts also 2 MB
PHASE_BYTES, PHASE_OPERATIONS, PHASE_TENSORS = 8 << 20, 100, 600

# All exact in every type: small whole numbers, times powers of two, once times three.
FACTORS = ((0.5, 1.0), (1.0, 2.0), (0.25, 4.0), (2.0, 0.5), (-1.0, 1.0), (3.0, 1.0), (1.0, 3.0), (1.0, -0.5))


def mix(*numbers: int) -> int:
    """32 bits that depend on all of the numbers."""
    return zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers))


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. ``shapes`` are those of its tensors, one unless it is a group; where ranks may bring different
    numbers of rows (allgather, alltoall), the first dimension is the most of them."""

    number: int
    kind: str
    set: int
    name: str | None
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    grouped: bool = False
    blocking: bool = False
    in_place: bool = False
    how: str = "sum"
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    splits: bool = True  # alltoall: given, not equal
    memory: str = "plain"  # plain, kept (the same at every step), shared, mixed (shared on some ranks), strided
    compression: str = "none"

    @property
    def prefix(self) -> str:
        return f"grouped_{self.kind}" if self.grouped else self.kind

    @property
    def function(self) -> str:
        """What it is called in the API."""
        return self.prefix + ("" if self.blocking else "_async") + ("_" if self.in_place else "")

    @property
    def bytes(self) -> int:
        return sum(math.prod(s) * ITEM_BYTES[d] for s, d in zip(self.shapes, self.dtypes, strict=True))

    def __str__(self) -> str:
        shown = [f"{d}{list(s)}" for d, s in zip(self.dtypes[:3], self.shapes, strict=False)]
        tensors = ", ".join(shown) + (f", … {len(self.shapes)} tensors" if len(self.shapes) > 3 else "")
        how = (
            f" {self.how} *{self.prescale:g} *{self.postscale:g}" if self.kind in ("allreduce", "reducescatter") else ""
        )
        root = f" root {self.root}" if self.kind == "broadcast" else ""
        more = f" {self.compression}" if self.compression != "none" else ""
        return f"op {self.number} {self.function}({tensors}){how}{root}{more} name={self.name} {self.memory}"


@dataclass(frozen=True, slots=True)
class Phase:
    """``fresh``: names differ from step to step. ``quotas``: by rank, how many of its thread's operations (counted
    over all steps) it takes part in before it joins; none if the phase does not end in a join."""

    threads: tuple[tuple[Op, ...], ...]
    steps: int
    fresh: bool = False
    window: int = 8  # how far ahead of the first one that is missing a rank may submit
    quotas: tuple[int, ...] = ()
    average_active: bool = False
    renew_set: int = 0  # remove this set before the phase, and add it again


@dataclass(frozen=True, slots=True)
class Program:
    seed: int
    number: int
    size: int
    sets: tuple[tuple[int, ...], ...]  # the first is everybody
    phases: tuple[Phase, ...]
    sets_at_init: bool
    barrier_at_end: bool
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        """How many are carried out, over all steps."""
        return sum(len(thread) * phase.steps for phase in self.phases for thread in phase.threads)

    def only(self, kept: set[int]) -> Program:
        """The same with only these operations (by number); where others come in the order stays."""
        phases = []
        for phase in self.phases:
            threads = tuple(tuple(op for op in thread if op.number in kept) for thread in phase.threads)
            quotas = phase.quotas
            if quotas:  # as many steps as before
                before, after = len(phase.threads[0]), len(threads[0])
                quotas = tuple(q * after // max(1, before) for q in quotas)
            if any(threads):
                phases.append(replace(phase, threads=tuple(t for t in threads if t), quotas=quotas))
        return replace(self, phases=tuple(phases))

    def contributors(self, phase: Phase, op: Op, index: int) -> tuple[int, ...]:
        """Who brings data to the ``index``-th operation of a thread."""
        members = self.sets[op.set]
        return tuple(m for m in members if phase.quotas[m] > index) if phase.quotas else members

    # ---- what depends on the rank, in operations that let it ----

    def rows(self, op: Op, step: int, rank: int, tensor: int) -> int:
        """Allgather: how many rows a rank brings."""
        most = op.shapes[tensor][0]
        drawn = mix(self.seed, self.number, op.number, step, rank, tensor, 7)
        return (most, 0, min(1, most), most // 2, drawn // 8 % (most + 1))[drawn % 5]

    def sent(self, op: Op, step: int, rank: int) -> tuple[int, ...]:
        """Alltoall: how many rows a rank sends to each member, of ``shapes[0][0]``."""
        most, members = op.shapes[0][0], len(self.sets[op.set])
        if not op.splits:
            return (most // members,) * members
        left, splits = most, []
        for member in range(members):
            drawn = mix(self.seed, self.number, op.number, step, rank, member, 8)
            rows = (0, min(1, left), left, drawn // 8 % (left + 1), min(left, -(-most // members)))[drawn % 5]
            splits.append(rows)
            left -= rows
        return tuple(splits)


WITHOUT = (
    *KINDS[1:],
    *REDUCTIONS[1:],
    "compression",
    "groups",
    "join",
    "large",
    "mixed",
    "reuse",
    "sets",
    "shared",
    "threads",
    "unnamed",
)
"""What can be left out of programs, to look for what else there is: ``large`` are groups of more tensors than the
core takes at once, ``mixed`` those of several element types, ``reuse`` is that of a name for something else later."""


def draw(seed: int, number: int, size: int, without: Collection[str] = ()) -> Program:
    """The program of this seed and number for ``size`` ranks."""
    return _Drawing(seed, number, size, frozenset(without)).program()


class _Drawing:
    """The random choices of one program, in order."""

    def __init__(self, seed: int, number: int, size: int, without: frozenset[str]) -> None:
        self.seed, self.number, self.size, self.without = seed, number, size, without
        self.random = r = random.Random(f"{seed}.{number}.{size}")
        # The taste of this program.
        self.kinds = self._wanted(r.choices(KINDS, (8, 2, 2, 2, 2, 0.5), k=r.choice((1, 2, 3, 12))))
        self.dtypes = r.sample(DTYPES, r.choice((1, 2, 4, len(DTYPES))))
        self.how = self._wanted(r.choices(REDUCTIONS, (6, 3, 1, 1, 1, 1), k=r.choice((1, 3, 8))))
        self.sizes = r.choices(
            ("tiny", "inline", "middle", "chunk", "large"), (2, 3, 4, 3, 0.5), k=r.choice((1, 2, 3, 6))
        )
        self.memory = r.choices(("plain", "kept", "shared", "mixed", "strided"), (2, 2, 4, 1, 1), k=r.choice((1, 2, 4)))
        if "shared" in without:
            self.memory = ["plain"]
        self.blocking = r.choice((0.0, 0.1, 0.3, 1.0))
        self.in_place = r.choice((0.3, 0.7, 0.95))
        self.unnamed = r.choice((0.0, 0.0, 0.1, 0.6)) if "unnamed" not in without else 0.0
        self.grouped = r.choice((0.0, 0.1, 0.6)) if "groups" not in without else 0.0
        self.scaled = r.choice((0.0, 0.2))
        self.crowded = r.random() < 0.25
        if self.crowded:  # single tensors through the slots and in place, on many sets at once
            self.sizes = r.choice((["inline", "middle"], ["middle"], ["middle", "chunk"]))
            self.memory = ["plain", "shared", "shared"] if "shared" not in without else ["plain"]
            self.blocking = self.grouped = self.unnamed = 0.0
        self.sets = self._sets()
        self.set_weights = [r.choice((1, 1, 3)) for _ in self.sets]
        self.next_number = self.next_thread = 0

    def _wanted(self, drawn: list[str]) -> list[str]:
        return [name for name in drawn if name not in self.without] or ["allreduce" if drawn[0] in KINDS else "sum"]

    def _sets(self) -> tuple[tuple[int, ...], ...]:
        everyone = tuple(range(self.size))
        found = {everyone: None}
        for _ in range(
            self.random.choice((6, 8) if self.crowded else (0, 1, 3, 5, 8))
            if self.size > 1 and "sets" not in self.without
            else 0
        ):
            found[tuple(sorted(self.random.sample(everyone, self.random.randint(1, self.size))))] = None
        return tuple(found)

    def program(self) -> Program:
        r = self.random
        if r.random() < 0.06 and "join" not in self.without:
            phases = self._epochs()
        else:
            phases = [self._phase() for _ in range(r.randint(1, 5))]
        settings = {
            "HORA_FUSION_THRESHOLD": r.choice(("", "", "0", "20000", "600000")),
            "HORA_DISABLE_GROUP_FUSION": r.choice(("", "", "1")),
            "HORA_CACHE_CAPACITY": r.choice(("", "", "0", "5", "40")),
            "HORA_CYCLE_TIME": r.choice(("", "0", "0.2")),
            "HORA_SPIN_US": r.choice(("", "", "0", "30")),
        }
        return Program(
            self.seed, self.number, self.size, self.sets, tuple(phases), r.random() < 0.5, r.random() < 0.5, settings
        )

    def _phase(self) -> Phase:
        r = self.random
        joins = r.random() < 0.15 and "join" not in self.without
        threads = 1 if joins or self.crowded or "threads" in self.without else r.choices((1, 2, 3), (6, 2, 1))[0]
        count = r.choice((10, 20) if self.crowded else (2, 6, 14, 30))
        operations = tuple(self._thread(t, count // threads or 1, joins) for t in range(threads))
        steps = min(r.choice((8, 20) if self.crowded else (1, 1, 3, 8, 20)), self._most_steps(operations))
        quotas = ()
        if joins:
            most = steps * len(operations[0])
            quotas = tuple(r.choice((0, most, r.randint(0, most))) for _ in range(self.size))
        return Phase(
            operations,
            steps,
            fresh=r.random() < 0.3,
            window=r.choice((12, 60) if self.crowded else (1, 4, 12, 60)),
            quotas=quotas,
            average_active=joins and r.random() < 0.5,
            renew_set=r.randrange(len(self.sets)) if r.random() < 0.1 else 0,
        )

    def _most_steps(self, threads: Sequence[Sequence[Op]]) -> int:
        every = [op for thread in threads for op in thread]
        tensors, total = sum(len(op.shapes) for op in every), sum(op.bytes for op in every)
        most = min(PHASE_OPERATIONS // len(every), PHASE_TENSORS // max(1, tensors), PHASE_BYTES // max(1, total))
        return max(1, most)

    def _epochs(self) -> list[Phase]:
        """Uneven epochs: one short join after the other."""
        r = self.random
        phases = []
        for _ in range(r.randint(4, 12)):
            operations = self._thread(0, r.randint(1, 4), joins=True)
            steps = min(r.randint(1, 12), self._most_steps([operations]))
            most = steps * len(operations)
            quotas = tuple(r.choice((0, most, r.randint(0, most))) for _ in range(self.size))
            phases.append(Phase((operations,), steps, False, r.choice((1, 4)), quotas, r.random() < 0.5))
        return phases

    def _thread(self, thread: int, count: int, joins: bool) -> tuple[Op, ...]:
        self.next_thread += 1
        label = f"{self.next_thread}.{thread}" if "reuse" in self.without else f"t{thread}"
        names: dict[tuple[str, int], int] = {}  # counted for each prefix and set, so that names are used again
        operations = []
        for _ in range(count):
            op = self._op(thread, joins)
            if op.name is not None:
                place = (op.prefix, op.set)
                names[place] = names.get(place, -1) + 1
                op = replace(op, name=f"{label}.{names[place]}")
            operations.append(op)
        return tuple(operations)

    def _op(self, thread: int, joins: bool) -> Op:
        r = self.random
        kind = "allreduce" if joins else r.choice(self.kinds)
        if kind == "barrier" and thread:  # without a name: only one thread may count them
            kind = "allreduce"
        chosen = r.choices(range(len(self.sets)), self.set_weights)[0]
        members = self.sets[chosen]
        number, self.next_number = self.next_number, self.next_number + 1
        name = None if thread == 0 and r.random() < self.unnamed else ""
        if kind == "barrier":
            return Op(number, kind, chosen, None, blocking=True)
        grouped = kind in ("allreduce", "allgather", "reducescatter") and r.random() < self.grouped
        how = r.choice(self.how) if kind == "allreduce" else r.choice(self._wanted(["sum", "average"]))
        if how == "adasum" and (joins or len(members) & (len(members) - 1)):
            how = "sum"
        prescale, postscale = r.choice(FACTORS) if r.random() < self.scaled else (1.0, 1.0)
        if how == "product":
            prescale, postscale = (1.0, 1.0) if prescale == 1.0 else (r.choice((0.5, -1.0)), 1.0)
        if joins and 3.0 in (prescale, postscale):
            prescale = postscale = 1.0
        dtypes = self._group_of_types(kind, grouped, how, prescale, postscale)
        if how == "average" and joins and set(dtypes) & set(FLOATS) and len(members) * _odd(self.size) > 256:
            how = "sum"  # the mean of some of so many is not exact in bfloat16
        shapes = tuple(self._shape(kind, dtype, len(members), len(dtypes)) for dtype in dtypes)
        if kind == "allgather" and "large" in self.without:  # rows without elements are counted by one more tensor each
            shapes = tuple((0,) if 0 in shape[1:] and len(shapes) > 128 else shape for shape in shapes)
        blocking = r.random() < self.blocking
        in_place = kind in ("allreduce", "broadcast") and r.random() < self.in_place
        rounded = kind in ("allreduce", "reducescatter") and blocking and not in_place and how != "adasum"
        return Op(
            number,
            kind,
            chosen,
            name,
            dtypes,
            shapes,
            grouped,
            blocking,
            in_place,
            how,
            prescale,
            postscale,
            root=r.choice(members) if kind == "broadcast" else -1,
            splits=r.random() < 0.8,
            memory=r.choice(self.memory),
            compression=r.choice(("fp16", "bf16"))
            if rounded and r.random() < 0.3 and "compression" not in self.without
            else "none",
        )

    def _group_of_types(self, kind: str, grouped: bool, how: str, prescale: float, postscale: float) -> tuple[str, ...]:
        r = self.random
        count = 1
        if grouped:
            count = r.choice((1, 2, 3, 5, 9, 20, 60))
            if r.random() < 0.04:
                count = r.choice((120, 250, 256) if kind == "allgather" else (120, 255, 256, 257, 300))
            if r.random() < 0.02 and "large" not in self.without:
                count = r.choice((257, 300, 700, 4096, 4097, 5000))
        dtypes = (
            r.choices(self.dtypes, k=count)
            if r.random() < 0.5 and "mixed" not in self.without
            else [r.choice(self.dtypes)] * count
        )
        if kind not in ("allreduce", "reducescatter"):
            return tuple(dtypes)
        if how == "adasum":
            return tuple(d if d in FLOATS else "float32" for d in dtypes)
        if how == "average" or (prescale, postscale) != (1.0, 1.0):
            dtypes = ["int16" if d == "bool" else d for d in dtypes]
        if -1.0 in (prescale, postscale) or -0.5 in (prescale, postscale):
            dtypes = ["int16" if d == "uint8" else d for d in dtypes]
        return tuple(dtypes)

    def _shape(self, kind: str, dtype: str, members: int, tensors: int) -> tuple[int, ...]:
        """Around the sizes at which the ways of moving data change, by bytes."""
        r, item = self.random, ITEM_BYTES[dtype]
        size = r.choice(self.sizes) if tensors < 30 or r.random() < 4 / tensors else "tiny"
        near = r.randint(-3, 3)
        if size == "tiny":
            count = r.choice((0, 1, 1, 2, 3, 7, 8, 9, 63, 64, 65, r.randint(0, 300)))
        elif size == "inline":
            count = max(
                0, (INLINE - r.choice((0, 8, 8 * tensors, 8 * members))) // r.choice((1, 1, tensors)) // item + near
            )
        elif size == "middle":
            count = int(2 ** r.uniform(10, 18)) // item
        elif size == "chunk":
            whole = r.choice((1, 1, 1, 2, 3)) * CHUNK
            count = max(1, (whole // r.choice((1, 1, members)) // item + near) // r.choice((1, tensors)))
        else:
            count = int(r.uniform(0.5, 4) * (1 << 20)) // item // tensors + near
        if kind == "alltoall":
            if not count:
                return r.choice(((0,), (0, 3), (2 * members, 0)))
            if r.random() < 0.5:
                return (count // members * members,)
            width = min(count, r.choice((1, 2, 5, 33)))
            return (max(1, count // width // members) * members, width)
        rows_matter = kind in ("allgather", "reducescatter")
        if not count:
            return r.choice(((0,), (0, 3), (3, 0), (2, 0, 3)))
        if count == 1 and not rows_matter and r.random() < 0.5:
            return ()
        width = min(count, r.choice((1, 1, 2, 3, 16, 100)))
        if width == 1 or r.random() < 0.4:
            return (count,)
        return (count // width, width) if r.random() < 0.7 else (max(1, count // width), 1, width)


def _odd(most: int) -> int:
    """The odd part of the least common multiple of 1..most: the mean of up to so many of its multiples is exact."""
    multiple = math.lcm(*range(1, most + 1))
    return multiple // (multiple & -multiple)


def multiple_for_means(members: int, joins: bool) -> int:
    """Of what the values of an average of floating-point numbers are a multiple."""
    if joins:
        return _odd(members)
    return members // (members & -members)
