"""Groups of more tensors than a place in the table has room for."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from tests.engine.table_crew import Crew, Rank, run, until

from hora.engine.tablefault import Status
from hora.engine.tableoperation import TableOperation, _Parts
from hora.errors import DuplicateNameError, HorovodInternalError, MismatchError
from hora.types import Kind, ReduceOp


def group(rank: int, tensors: int) -> list[np.ndarray[Any, Any]]:
    """Of one or two elements each; none is like another."""
    return [np.full(1 + i % 2, 10 * i + rank, "int64") for i in range(tensors)]


def gather(me: Rank, tensors: int, name: str = "g") -> None:
    outcome = me.submit(Kind.ALLGATHER, name, group(me.rank, tensors), grouped=True).wait()
    every = [group(r, tensors) for r in range(me.size)]
    got = np.concatenate([np.frombuffer(memory, "int64") for memory in outcome.memory])
    np.testing.assert_array_equal(got, np.concatenate([part for parts in zip(*every, strict=True) for part in parts]))
    assert outcome.received == tuple((8 * (1 + i % 2),) * me.size for i in range(tensors))


def reduce(me: Rank, tensors: int, name: str = "g") -> None:
    arrays = group(me.rank, tensors)
    me.submit(Kind.ALLREDUCE, name, arrays, grouped=True, op=ReduceOp.SUM).wait()
    want = sum(np.concatenate(group(r, tensors)) for r in range(me.size))
    np.testing.assert_array_equal(np.concatenate(arrays), want)


def scatter(me: Rank, tensors: int, name: str = "g") -> None:
    arrays = [np.full(me.size, 10 * i + me.rank, "int64") for i in range(tensors)]
    parts = [np.empty(1, "int64") for _ in arrays]
    me.submit(Kind.REDUCESCATTER, name, arrays, parts, grouped=True, op=ReduceOp.SUM).wait()
    want = 10 * me.size * np.arange(tensors) + me.size * (me.size - 1) // 2
    np.testing.assert_array_equal(np.concatenate(parts), want)


def broadcast(me: Rank, tensors: int, name: str = "g") -> None:
    arrays = group(me.rank, tensors)
    me.submit(Kind.BROADCAST, name, arrays, grouped=True, root=me.size - 1).wait()
    np.testing.assert_array_equal(np.concatenate(arrays), np.concatenate(group(me.size - 1, tensors)))


@pytest.mark.parametrize(
    ("collective", "tensors"),
    [
        (gather, 257),
        (gather, 700),
        (gather, 5000),
        (reduce, 4097),
        (reduce, 5000),
        (scatter, 4097),
        (scatter, 5000),
        (broadcast, 4097),
    ],
)
def test_a_group_of_any_size_is_carried_out(collective: Any, tensors: int) -> None:
    """Twice, for the second time everything is known; and what comes after it is right too."""

    def body(me: Rank) -> None:
        for _ in range(2):
            collective(me, tensors)
        array = np.full(3, me.rank)
        me.allreduce(array, "after").wait()
        np.testing.assert_array_equal(array, np.full(3, 1))
        assert me.backend.snapshot().pending == ()

    run(2, body)


@pytest.mark.parametrize("collective", [gather, reduce, scatter])
@pytest.mark.parametrize("counts", [(4097, 4096), (4100, 4097), (1, 8193)])
def test_who_brings_another_number_of_tensors_fails_the_group_on_all_ranks(
    collective: Any, counts: tuple[int, int]
) -> None:
    """And nothing of it stays behind: the same name with the same number on all ranks is right at once."""

    def body(me: Rank) -> str:
        text = ""
        for count in counts:
            with pytest.raises(MismatchError) as caught:
                collective(me, counts[me.rank % 2])
            text = str(caught.value)
            collective(me, count)
        assert me.backend.snapshot().pending == ()
        return text

    texts = run(3, body)
    assert len(set(texts)) == 1
    for count in counts:
        assert f"{count} tensor" in texts[0], texts[0]


def test_who_is_slow_to_submit_the_parts_of_a_failed_group_does_not_meet_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 has been told of the failure, and tries again, before rank 1 submits another part of the first group."""

    with Crew(2) as crew:
        zero, one = crew.ranks
        ticket = zero.submit(Kind.ALLREDUCE, "g", group(0, 5000), grouped=True)
        assert isinstance(ticket, _Parts)
        submit, again = TableOperation._submit, list[Any]()

        def slow(*arguments: Any) -> Any:
            part = submit(*arguments)
            if not again and arguments[0]._backend is one.backend and ticket._parts[0].done():
                with pytest.raises(MismatchError):
                    ticket.wait()
                again.append(zero.submit(Kind.ALLREDUCE, "g", group(0, 4097), grouped=True))
            return part

        monkeypatch.setattr(TableOperation, "_submit", slow)
        failed = one.submit(Kind.ALLREDUCE, "g", group(1, 4097), grouped=True)
        with pytest.raises(MismatchError):
            failed.wait()
        assert again
        arrays = group(1, 4097)
        right = one.submit(Kind.ALLREDUCE, "g", arrays, grouped=True)
        until(right.done)
        right.wait()
        np.testing.assert_array_equal(np.concatenate(arrays), sum(np.concatenate(group(r, 4097)) for r in range(2)))
        again[0].wait()


def test_parts_of_a_failed_group_do_not_meet_the_next_one() -> None:
    """Rank 0 has been told of the failure, and tries again, before rank 1 looks. Nothing that rank 1 brought to the
    first try may be in the second."""
    with Crew(2) as crew:
        zero, one = crew.ranks
        failed = [zero.submit(Kind.ALLREDUCE, "g", group(0, 1), grouped=True)]
        stale = one.submit(Kind.ALLREDUCE, "g", group(7, 5000), grouped=True)
        with pytest.raises(MismatchError):
            failed[0].wait()
        arrays = [group(r, 5000) for r in range(2)]
        again = [zero.submit(Kind.ALLREDUCE, "g", arrays[0], grouped=True)]
        assert isinstance(again[0], _Parts)
        assert not any(part.done() for part in again[0]._parts)
        with pytest.raises(MismatchError):
            stale.wait()
        again.append(one.submit(Kind.ALLREDUCE, "g", arrays[1], grouped=True))
        for ticket in again:
            until(ticket.done)
            ticket.wait()
        want = sum(np.concatenate(group(r, 5000)) for r in range(2))
        for brought in arrays:
            np.testing.assert_array_equal(np.concatenate(brought), want)


def test_a_group_is_withdrawn_though_its_lock_is_held_for_long() -> None:
    """Rank 0 is refused a part; what it had submitted of the group by then may not stay behind."""
    with Crew(2) as crew:
        zero, one = crew.ranks
        before = zero.submit(Kind.ALLREDUCE, "g", group(0, 4097), grouped=True)
        library, withdrawn = zero.backend._lib, list[int]()

        class Held:
            def __getattr__(self, name: str) -> Any:
                return getattr(library, name)

            def withdraw(self, *arguments: Any) -> int:
                if not withdrawn:
                    one.hold_lock()
                withdrawn.append(library.withdraw(*arguments))
                if len(withdrawn) == 1:
                    one.let_go_of_lock()
                return withdrawn[-1]

        zero.backend._lib = Held()  # type: ignore[assignment]
        with pytest.raises(DuplicateNameError):
            zero.submit(Kind.ALLREDUCE, "g", group(0, 9000), grouped=True)
        zero.backend._lib = library
        assert withdrawn == [Status.PENDING, Status.OK]
        assert len(zero.backend.snapshot().pending) == 2
        after = one.submit(Kind.ALLREDUCE, "g", group(1, 4097), grouped=True)
        before.wait()
        after.wait()


def test_what_differs_in_a_tensor_that_is_not_described_is_still_a_mismatch() -> None:
    with Crew(2) as crew:
        tickets = []
        for rank in crew.ranks:
            arrays = group(0, 1000)
            arrays[-1] = np.ones(3 + rank.rank)
            tickets.append(rank.submit(Kind.ALLREDUCE, "g", arrays, grouped=True))
        for ticket in tickets:
            with pytest.raises(MismatchError, match="a tensor after the first 32"):
                ticket.wait()


def test_a_group_is_done_when_all_its_parts_are() -> None:
    with Crew(2) as crew:
        zero, one = crew.ranks
        tickets = [zero.submit(Kind.ALLREDUCE, "g", group(0, 5000), grouped=True)]
        assert isinstance(tickets[0], _Parts) and not tickets[0].done()
        tickets.append(one.submit(Kind.ALLREDUCE, "g", group(1, 5000), grouped=True))
        for ticket in tickets:
            while not ticket.done():
                pass
            ticket.wait()


def test_a_group_in_flight_cannot_be_submitted_again_and_nothing_of_the_second_stays() -> None:
    """Also not a larger one, of which other ranks might get parts."""
    with Crew(2) as crew:
        zero, one = crew.ranks
        arrays = [group(r, 5000) for r in range(2)]
        tickets = [zero.submit(Kind.ALLREDUCE, "g", arrays[0], grouped=True)]
        for tensors in (1, 4097, 9000):
            with pytest.raises(DuplicateNameError, match="'g'"):
                zero.submit(Kind.ALLREDUCE, "g", group(0, tensors), grouped=True)
        assert len(zero.backend.snapshot().pending) == 2
        tickets.append(one.submit(Kind.ALLREDUCE, "g", arrays[1], grouped=True))
        for rank, ticket in zip(crew.ranks, tickets, strict=True):
            ticket.wait()
            assert rank.backend.snapshot().pending == ()


def test_a_group_goes_on_without_whom_ctrl_c_called_away() -> None:
    """As an operation of one part does: peers get what was brought."""
    with Crew(2) as crew:
        zero, one = crew.ranks
        arrays = [group(r, 5000) for r in range(2)]
        ticket = zero.submit(Kind.ALLREDUCE, "g", arrays[0], grouped=True, op=ReduceOp.SUM)
        library = zero.backend._lib

        class Interrupted:
            def __getattr__(self, name: str) -> Any:
                return getattr(library, name)

            def finish(self, *arguments: Any) -> int:
                status: int = library.finish(*arguments)
                signal.raise_signal(signal.SIGINT)
                return status

        zero.backend._lib = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            ticket.wait()
        zero.backend._lib = library
        one.submit(Kind.ALLREDUCE, "g", arrays[1], grouped=True, op=ReduceOp.SUM).wait()
        for i, array in enumerate(arrays[1]):
            assert (array == 20 * i + 1).all()


def test_a_group_that_fails_says_so_of_every_part() -> None:
    """Rank 1 has only the first part, by another number; rank 2 waits for the second first."""
    with Crew(3) as crew:
        zero, one, two = crew.ranks
        first = zero.submit(Kind.ALLREDUCE, "g", group(0, 5000), grouped=True)
        second = two.submit(Kind.ALLREDUCE, "g", group(0, 5000), grouped=True)
        assert isinstance(first, _Parts) and isinstance(second, _Parts)
        third = one.submit(Kind.ALLREDUCE, "g", group(0, 3), grouped=True)
        for ticket in (second._parts[1], second._parts[0], third, first):
            with pytest.raises(MismatchError, match="3 tensor"):
                ticket.wait()


def test_a_part_that_was_withdrawn_says_so() -> None:
    with Crew(2) as crew:
        zero = crew.ranks[0]
        ticket = zero.submit(Kind.ALLREDUCE, "g", group(0, 3), grouped=True)
        assert zero.backend._lib.withdraw(zero.backend._core, ticket.number) == Status.OK
        with pytest.raises(HorovodInternalError, match="a part of the group 'g' failed"):
            ticket.wait()
