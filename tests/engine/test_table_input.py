"""What nobody would bring on purpose: endless names, thousands of process sets, empty tensors, odd addresses, 4 GB."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from tests.engine.table_crew import Crew, Rank, run

from hora.engine.request import Request, TensorSpec
from hora.errors import MismatchError, UsageError
from hora.types import Buffer, DType, Kind, ReduceOp, Reduction

LONG = "x" * (1 << 20)
NAMES = [
    LONG + "1",
    LONG + "2",
    "",
    " ",
    "a\0b",
    "a\0c",
    "\n",
    "日本語" * 500,
    "🦀" * 400,
    "e\u0301",
    "\u00e9",
    "\u202eabc",
    "%s{0}\\",
]


def test_a_name_may_be_anything_and_no_two_are_the_same() -> None:
    """All in flight at once, in another order on each rank."""

    def body(me: Rank) -> None:
        order = NAMES[me.rank :] + NAMES[: me.rank]
        arrays = {name: np.full(3, 10.0 * NAMES.index(name) + me.rank) for name in NAMES}
        tickets = {name: me.allreduce(arrays[name], name) for name in order}
        for name, ticket in tickets.items():
            ticket.wait()
            np.testing.assert_array_equal(arrays[name], np.full(3, 30.0 * NAMES.index(name) + 3))

    run(3, body)


@pytest.mark.parametrize("name", [LONG, "日本語" * 5000, "a\0b"])
def test_a_name_is_told_as_far_as_there_is_room(name: str) -> None:
    def body(me: Rank) -> None:
        with pytest.raises(MismatchError) as caught:
            me.allreduce(np.ones(3 + me.rank), name).wait()
        assert name[:400] in str(caught.value) and len(str(caught.value)) < 3000

    run(2, body)


def test_every_set_that_eight_ranks_can_form() -> None:
    sets = [s for n in range(1, 9) for s in itertools.combinations(range(8), n)]
    assert len(sets) == 255

    def body(me: Rank) -> None:
        for count in (3, 3000):
            tickets = []
            for i, members in enumerate(sets):
                if me.rank in members:
                    array = np.full(count, float(i + me.rank), "float32")
                    tickets.append((i, members, array, me.allreduce(array, "x", members=members)))
            for i, members, array, ticket in tickets:
                ticket.wait()
                np.testing.assert_array_equal(array, np.full(count, float(sum(i + r for r in members))))

    run(8, body)


def test_one_process_set_too_many_is_refused_with_a_way_out() -> None:
    """For real: rank 0 makes them all, for which it needs nobody."""
    with Crew(15) as crew:
        backend = crew.backends[0]
        sets = [s for n in range(1, 16) for s in itertools.combinations(range(15), n)]
        numbers = [backend._set(members) for members in sets[:16384]]
        assert numbers == list(range(16384))
        with pytest.raises(UsageError, match=r"at most 16384 different process sets.*: ranks? .*use fewer"):
            backend._set(sets[16384])
        assert backend._set(sets[7]) == 7
        assert crew.backends[1]._set(sets[16383]) == 16383
        with pytest.raises(UsageError, match="16384"):
            crew.ranks[1].allreduce(np.ones(1), "x", members=sets[-1])


EMPTY = [(0,), (0, 3), (3, 0), (0, 0)]


@pytest.mark.parametrize("shape", EMPTY)
def test_tensors_without_elements_pass_through_every_collective(shape: tuple[int, ...]) -> None:
    """Alone, in groups, and beside full ones; with every reduction."""
    size = 3

    def body(me: Rank) -> None:
        empty = np.empty(shape, "float32")
        for op in ReduceOp:
            if op is not ReduceOp.ADASUM:
                me.allreduce(empty, f"x{op}", op=op).wait()
        for count in (4, 5000):
            group = [empty, np.full(count, float(me.rank), "float32"), empty, np.full(2, 1, "int64"), empty]
            me.submit(Kind.ALLREDUCE, f"group{count}", group, grouped=True).wait()
            assert (group[1] == 3).all() and (group[3] == 3).all()
            one_has_some = np.full((4 * count if me.rank == 1 else 0, 2), 5.0)
            outcome = me.submit(Kind.ALLGATHER, f"some{count}", [one_has_some]).wait()
            np.testing.assert_array_equal(np.frombuffer(outcome.memory[0]), np.full(8 * count, 5.0))
            assert outcome.received == ((0, 64 * count, 0),)
        outcome = me.submit(Kind.ALLGATHER, "gather", [empty, empty], grouped=True).wait()
        assert [bytes(m) for m in outcome.memory] == [b"", b""] and outcome.received == ((0, 0, 0), (0, 0, 0))
        me.submit(Kind.BROADCAST, "broadcast", [empty], root=2).wait()
        splits = (shape[0] // 3,) * 3
        outcome = me.submit(Kind.ALLTOALL, "exchange", [empty], splits=splits).wait()
        assert [bytes(m) for m in outcome.memory] == [b""] and outcome.received == ((0, 0, 0),)
        part = np.empty((shape[0] // 3, *shape[1:]), "float32")
        me.submit(Kind.REDUCESCATTER, "scatter", [empty], [part]).wait()
        me.barrier()

    run(size, body)


@pytest.mark.parametrize("shape", EMPTY)
def test_adasum_of_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    def body(me: Rank) -> None:
        empty, ones = np.empty(shape), np.ones(4)
        me.allreduce(empty, "x", op=ReduceOp.ADASUM).wait()
        me.submit(Kind.ALLREDUCE, "group", [empty, ones], grouped=True, op=ReduceOp.ADASUM).wait()
        np.testing.assert_allclose(ones, np.ones(4))

    run(2, body)


def odd(dtype: DType, values: np.ndarray[Any, Any], memory: Any = None) -> tuple[Buffer, np.ndarray[Any, Any]]:
    """These values at an odd address, as a buffer and as bytes."""
    plain = np.ascontiguousarray(values).view("uint8").ravel()
    room = np.frombuffer(memory if memory is not None else bytearray(plain.size + 16), "uint8")
    start = 1 - room.ctypes.data % 2
    view = room[start : start + plain.size]
    view[:] = plain
    assert view.ctypes.data % 2 == 1
    return Buffer(view.ctypes.data, dtype, values.shape, room), view


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.name)
def test_tensors_may_lie_at_odd_addresses(dtype: DType) -> None:
    """In every collective and every type, small, in one chunk and in several, in plain and in shared memory."""

    def body(me: Rank) -> None:
        for count in (6, 6000, 300_000):

            def start(kind: Kind, inputs: list[Buffer], outputs: list[Buffer], **more: Any) -> Any:
                segments = tuple(TensorSpec(b.dtype, b.shape) for b in inputs)
                request = Request(kind, f"{kind}{count}{more}", segments, me.everyone, line="here:1", **more)  # noqa: B023
                return me.backend.prepare(request).start(inputs, outputs).wait()

            parts = [np.resize(np.arange(7) % (2 + r), count).astype(numpy_of(dtype)) for r in range(2)]
            both = coded(dtype, parts)
            total = coded(dtype, [parts[0] | parts[1] if dtype is DType.BOOL else parts[0] + parts[1]])[0]
            for memory in (None, me.backend.allocate(total.nbytes + 16)):
                buffer, view = odd(dtype, both[me.rank], memory)
                start(Kind.ALLREDUCE, [buffer], [buffer], how=Reduction(ReduceOp.SUM))
                assert view.tobytes() == total.tobytes()
            buffer, view = odd(dtype, both[me.rank])
            start(Kind.BROADCAST, [buffer], [buffer], root=1)
            assert view.tobytes() == both[1].tobytes()
            buffer, view = odd(dtype, both[me.rank])
            outcome = start(Kind.ALLGATHER, [buffer], [])
            assert bytes(outcome.memory[0]) == both[0].tobytes() + both[1].tobytes()
            outcome = start(Kind.ALLTOALL, [buffer], [], splits=(count // 2 - 1, count // 2 + 1))
            mine = slice(None, count // 2 - 1) if me.rank == 0 else slice(count // 2 - 1, None)
            assert bytes(outcome.memory[0]) == both[0][mine].tobytes() + both[1][mine].tobytes()
            half = slice(None, count // 2) if me.rank == 0 else slice(count // 2, None)
            to, got = odd(dtype, np.zeros_like(total[half]))
            start(Kind.REDUCESCATTER, [buffer], [to], how=Reduction(ReduceOp.SUM))
            assert got.tobytes() == total[half].tobytes()

    run(2, body)


def numpy_of(dtype: DType) -> str:
    return "float32" if dtype is DType.BFLOAT16 else dtype.name.lower()


def coded(dtype: DType, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """bfloat16 as the upper halves of float32, which small integers fit into."""
    if dtype is not DType.BFLOAT16:
        return arrays
    return [(array.view("uint32") >> 16).astype("uint16") for array in arrays]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tensors_of_more_than_four_gigabytes() -> None:
    """Sizes and places that do not fit 32 bits: summed, broadcast and gathered, and every byte compared."""
    count, step = (1 << 32) + 4099, 1 << 20
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 14 << 30:
        pytest.skip("hardware: needs 14 GB of memory that is free")
    patterns = [np.resize(np.arange(251 - 10 * r, dtype="uint8"), step) for r in range(2)]

    def piece(rank: int, at: int, end: int) -> np.ndarray[Any, Any]:
        """What a rank has there: no two mebibytes near each other are alike."""
        return patterns[rank][: end - at] * np.uint8(2 * (at // step % 113) + 1)

    def pieces(end: int) -> list[tuple[int, int]]:
        return [(at, min(at + step, end)) for at in range(0, end, step)]

    def body(me: Rank) -> None:
        array = np.empty(count, "uint8")
        for at, end in pieces(count):
            array[at:end] = piece(me.rank, at, end)
        me.allreduce(array, "sum").wait()
        for at, end in pieces(count):
            assert np.array_equal(array[at:end], piece(0, at, end) + piece(1, at, end)), at
        for at, end in pieces(count):
            array[at:end] = piece(me.rank, at, end)
        me.submit(Kind.BROADCAST, "copy", [array], root=1).wait()
        for at, end in pieces(count):
            assert np.array_equal(array[at:end], piece(1, at, end)), at
        sizes = (1 << 31, (1 << 31) + 7)
        outcome = me.submit(Kind.ALLGATHER, "all", [array[: sizes[me.rank]]]).wait()
        assert outcome.received == (sizes,)
        del array
        got = np.frombuffer(outcome.memory[0], "uint8")
        for first, size in ((0, sizes[0]), sizes):
            for at, end in pieces(size):
                assert np.array_equal(got[first + at : first + end], piece(1, at, end)), (first, at)

    run(2, body, deadline_s=500)
