"""Scripts that are wrong: every rank is told the same, with all ranks and lines; and the engine goes on."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from tests.multi.body import body
from tests.multi.data import process_sets, raises
from tests.prompt import PROMPT_S

from hora.engine import session
from hora.engine.request import OperationSpec, forms
from hora.torch.adapter import buffer, dtype_of
from hora.types import Kind

Call = Callable[[], Any]


def ranks_named(text: str) -> set[int]:
    """The ranks a message names: ``rank 1``, ``ranks 0, 2``, ``ranks 0-3``."""
    named: set[int] = set()
    for listed in re.findall(r"\branks? (\d+(?:(?:-|, )\d+)*)", text):
        for part in listed.split(", "):
            first, _, last = part.partition("-")
            named.update(range(int(first), int(last or first) + 1))
    return named


def all_raise_the_same(hvd: ModuleType, size: int, kind: type[BaseException], call: Call) -> str:
    """Every rank raises ``kind`` with one text that names every rank and this line; and the next operation works."""
    with raises(kind, "mistakes.py:") as caught:
        call()
    text = str(caught[0])
    texts = hvd.allgather_object(text, name="texts")
    assert texts == [text] * size, texts
    assert ranks_named(text) >= set(range(size)), text
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size
    return text


@body(sizes=(2, 3, 4))
def every_field_that_can_differ(hvd: ModuleType, rank: int, size: int) -> None:
    odd = rank == size - 1  # the one that differs
    one = torch.ones(4)
    mistakes: dict[str, tuple[str, Call]] = {
        "dtype": ("float64", lambda: hvd.allreduce(one.double() if odd else one, name="x")),
        "shape": ("(5,)", lambda: hvd.allreduce(torch.ones(5) if odd else one, name="x")),
        "dimensions": ("(4, 1)", lambda: hvd.allreduce(one[:, None] if odd else one, name="x")),
        "op": ("Max", lambda: hvd.allreduce(one, name="x", op=hvd.Max if odd else hvd.Sum)),
        "prescale": ("0.5", lambda: hvd.allreduce(one, name="x", prescale_factor=0.5 if odd else 1.0)),
        "postscale": ("0.25", lambda: hvd.allreduce(one, name="x", postscale_factor=0.25 if odd else 1.0)),
        "root": ("1", lambda: hvd.broadcast(one, 1 if odd else 0, name="x")),
        "broadcast shape": ("(5,)", lambda: hvd.broadcast(torch.ones(5) if odd else one, 0, name="x")),
        "allgather width": ("3)", lambda: hvd.allgather(torch.ones(4, 3 if odd else 2), name="x")),
        "allgather dtype": ("int64", lambda: hvd.allgather(one.long() if odd else one, name="x")),
        "alltoall width": ("3", lambda: hvd.alltoall(torch.ones(size, 3 if odd else 2), name="x")),
        "reducescatter rows": ("(9,)", lambda: hvd.reducescatter(torch.ones(9 if odd else 8), name="x")),
        "reducescatter op": ("Sum", lambda: hvd.reducescatter(one, name="x", op=hvd.Sum if odd else hvd.Average)),
        "group length": ("", lambda: hvd.grouped_allreduce([one] * (3 if odd else 2), name="x")),
        "group order": (
            "",
            lambda: hvd.grouped_allreduce([one, one.long()][:: -1 if odd else 1], name="x", op=hvd.Sum),
        ),
        "rows without elements": ("", lambda: hvd.allgather(torch.ones(2, 0 if odd else 1), name="x")),
    }
    for what, (word, call) in mistakes.items():
        for _ in range(2):  # the second time the name is known
            text = all_raise_the_same(hvd, size, hvd.MismatchError, call)
            assert word.lower() in text.lower(), (what, text)


@body(sizes=(2, 3, 4))
def different_devices(hvd: ModuleType, rank: int, size: int) -> None:
    """As a GPU is not at hand, below the front-end."""
    own = torch.ones(4)
    memory = [buffer(own, dtype_of(own))]

    def call() -> None:
        engine = session.engine()
        engine.prepare(OperationSpec(Kind.ALLREDUCE, "x", forms(memory), device="cuda" if rank else "cpu")).start(
            memory, memory
        ).wait()

    text = all_raise_the_same(hvd, size, hvd.MismatchError, call)
    assert "cuda" in text and "cpu" in text


@body(sizes=(2, 3, 4))
def sparse_tensors_of_different_shapes(hvd: ModuleType, rank: int, size: int) -> None:
    wait = hvd.sparse_allreduce_async(torch.eye(3 if rank else 4).to_sparse(), name="s")
    with raises(hvd.MismatchError, "(4, 4)", "(3, 3)", "rank 0"):
        wait()
    wait = hvd.sparse_allreduce_async(torch.eye(3).to_sparse() if rank else torch.ones(3).to_sparse(), name="s")
    with raises(hvd.MismatchError):
        wait()
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(2, 3, 4))
def a_known_operation_that_changes_on_one_rank(hvd: ModuleType, rank: int, size: int) -> None:
    for length in (4, 4, 4):
        hvd.allreduce(torch.ones(length), name="x", op=hvd.Sum)
    length = 4 if rank else 6
    all_raise_the_same(hvd, size, hvd.MismatchError, lambda: hvd.allreduce(torch.ones(length), name="x", op=hvd.Sum))
    assert hvd.allreduce(torch.ones(4), name="x", op=hvd.Sum)[0].item() == size


@body(sizes=(2, 3, 4))
def a_repeated_in_place_operation_that_changes_on_one_rank(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(2):
        for _ in range(3):
            assert hvd.allreduce_(torch.ones(4), name="x", op=hvd.Sum)[0].item() == size
        own = torch.ones(4 if rank else 6)
        all_raise_the_same(hvd, size, hvd.MismatchError, partial(hvd.allreduce_, own, name="x", op=hvd.Sum))
        assert own.eq(1).all(), "a failed operation leaves its tensor as it was"


@body(sizes=(2, 3, 4))
def a_repeated_in_place_operation_that_one_rank_leaves_out(hvd: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        hvd.allreduce_(torch.ones(4), name="x", op=hvd.Sum)
        hvd.allreduce_(torch.ones(4), name="y", op=hvd.Sum)
    begin = time.monotonic()
    with raises(hvd.DeadlockError, "allreduce.x", "allreduce.y"):
        hvd.allreduce_(torch.ones(4), name="y" if rank else "x", op=hvd.Sum)
    assert time.monotonic() - begin < PROMPT_S
    assert hvd.allreduce_(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(2, 3, 4))
def others_in_flight_are_not_harmed(hvd: ModuleType, rank: int, size: int) -> None:
    before = hvd.allreduce_async(torch.ones(3), name="before", op=hvd.Sum)
    wrong = hvd.allreduce_async(torch.ones(3 + rank), name="wrong", op=hvd.Sum)
    after = hvd.allreduce_async(torch.ones(3), name="after", op=hvd.Sum)
    for handle in (before, after):
        assert hvd.synchronize(handle).tolist() == [size] * 3
    with raises(hvd.MismatchError, "wrong"):
        hvd.synchronize(wrong)


@body(sizes=(2, 3, 4))
def different_kinds_under_one_name(hvd: ModuleType, rank: int, size: int) -> None:
    begin = time.monotonic()
    call: Call = (
        (lambda: hvd.allgather(torch.ones(2), name="x")) if rank else lambda: hvd.allreduce(torch.ones(2), name="x")
    )
    with raises(hvd.DeadlockError, "allreduce.x", "allgather.x") as caught:
        call()
    assert time.monotonic() - begin < PROMPT_S
    assert ranks_named(str(caught[0])) >= set(range(size))
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(2, 3, 4))
def different_order_of_blocking_calls(hvd: ModuleType, rank: int, size: int) -> None:
    begin = time.monotonic()
    names = ["first", "second"][:: -1 if rank == 0 else 1]
    with raises(hvd.DeadlockError, "first", "second"):
        for name in names:
            hvd.allreduce(torch.ones(2), name=name)
    assert time.monotonic() - begin < PROMPT_S
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(2, 3, 4))
def a_group_here_and_single_tensors_there(hvd: ModuleType, rank: int, size: int) -> None:
    begin = time.monotonic()
    with raises(hvd.DeadlockError):
        if rank:
            hvd.grouped_allreduce([torch.ones(2), torch.ones(2)], name="x")
        else:
            hvd.allreduce(torch.ones(2), name="x")
    assert time.monotonic() - begin < PROMPT_S
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body()
def the_same_name_twice(hvd: ModuleType, rank: int, size: int) -> None:
    if size == 1:
        return  # alone, the first has always finished
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
        with raises(hvd.DuplicateNameError, "x"):
            hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [size] * 2


@body()
def bad_roots(hvd: ModuleType, rank: int, size: int) -> None:
    for root in (size, -1, 1000):
        with raises(hvd.UsageError, str(root)):
            hvd.broadcast(torch.ones(2), root, name="x")
    with process_sets(hvd, size) as every:
        for process_set in every:
            outside = set(range(size)) - set(process_set.ranks)
            if process_set.included() and outside:
                with raises(hvd.UsageError, str(min(outside))):
                    hvd.broadcast(torch.ones(2), min(outside), name="x", process_set=process_set)


@body()
def bad_splits(hvd: ModuleType, rank: int, size: int) -> None:
    own = torch.ones(size * 2)
    with raises(hvd.UsageError, "numbers for"):
        hvd.alltoall(own, [1] * (size + 1))
    with raises(hvd.UsageError, "negative"):
        hvd.alltoall(own, [-1] * size)
    with raises(hvd.UsageError, "rows"):
        hvd.alltoall(own, [3] * size)
    with raises(hvd.UsageError, "integers"):
        hvd.alltoall(own, [0.5] * size)
    if size > 1:
        with raises(hvd.UsageError, "splits"):
            hvd.alltoall(torch.ones(size * 2 + 1))
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(2, 3, 4))
def not_a_member(hvd: ModuleType, rank: int, size: int) -> None:
    others = hvd.add_process_set([0])
    if rank != 0:
        calls: list[Call] = [
            lambda: hvd.allreduce(torch.ones(2), process_set=others),
            lambda: hvd.grouped_allreduce([torch.ones(2)], process_set=others),
            lambda: hvd.allgather(torch.ones(2), process_set=others),
            lambda: hvd.broadcast(torch.ones(2), 0, process_set=others),
            lambda: hvd.alltoall(torch.ones(2), process_set=others),
            lambda: hvd.reducescatter(torch.ones(2), process_set=others),
            lambda: hvd.barrier(others),
            lambda: hvd.allgather_object(1, process_set=others),
            lambda: hvd.broadcast_object(1, 0, process_set=others),
        ]
        for call in calls:
            with raises(hvd.NotMemberError, f"rank {rank}"):
                call()
    hvd.remove_process_set(others)


@body()
def tensors_that_cannot_be_carried(hvd: ModuleType, rank: int, size: int) -> None:
    with raises(hvd.UsageError, "complex64", "view_as_real"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    with raises(hvd.UsageError, "float8_e5m2", "bfloat16"):
        hvd.allreduce(torch.ones(2).to(torch.float8_e5m2))
    with raises(hvd.UsageError, "Average of bool"):
        hvd.allreduce(torch.ones(2, dtype=torch.bool))
    with raises(hvd.UsageError, "sparse"):
        hvd.allreduce(torch.eye(2).to_sparse())
    with raises(hvd.UsageError, "list", "torch.Tensor"):
        hvd.allreduce([1.0])
    for function in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with raises(hvd.UsageError, "0-d"):
            function(torch.tensor(1.0))
    with raises(hvd.UsageError, "expanded"):
        hvd.allreduce_(torch.zeros(1).expand(3))
    with raises(hvd.UsageError, "empty list"):
        hvd.grouped_allreduce([])
    with raises(hvd.UsageError, "average=True and op=Sum"):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size


@body(sizes=(2, 3, 4))
def unnamed_operations_of_different_lines(hvd: ModuleType, rank: int, size: int) -> None:
    """Equal shapes from different lines: the sum is done, with a warning naming both lines (strict mode: an error)."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hora").addHandler(handler)
    calls: list[Call] = [
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Sum),
        lambda: hvd.allreduce(torch.ones(2), op=hvd.Sum),
    ]
    try:
        assert calls[rank > 0]().tolist() == [size] * 2
    finally:
        logging.getLogger("hora").removeHandler(handler)
    lines = [f"mistakes.py:{call.__code__.co_firstlineno}" for call in calls]
    everyone = " ".join(hvd.allgather_object(" ".join(said)))
    assert all(line in everyone for line in lines), (lines, everyone)


@body()
def names_of_any_length_and_script(hvd: ModuleType, rank: int, size: int) -> None:
    """All in flight at once; those that are no text are refused where they are."""
    long = "x" * (1 << 20)
    names = [
        long + "1",
        long + "2",
        " ",
        "a\0b",
        "a\0c",
        "\n",
        "日本語" * 500,
        "🦀",
        "e\u0301",
        "\u00e9",
        "\u202eabc",
        "%s{0}",
    ]
    handles = {
        name: hvd.allreduce_async(torch.full((2,), float(names.index(name))), name=name, op=hvd.Sum)
        for name in names[rank:] + names[:rank]
    }
    for i, name in enumerate(names):
        assert hvd.synchronize(handles[name]).tolist() == [float(i * size)] * 2
    for name in ("\ud800", "caf\udce9"):
        with raises(hvd.UsageError, "unpaired surrogate"):
            hvd.allreduce(torch.ones(2), name=name)
    script = compile("hvd.allreduce(torch.ones(1), name='odd')", "caf\udce9.py", "exec")  # a file name in Latin-1
    exec(script, {"hvd": hvd, "torch": torch})
    assert hvd.allreduce(torch.ones(1), name="next", op=hvd.Sum).item() == size
