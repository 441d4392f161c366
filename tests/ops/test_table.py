"""The table is consistent with itself."""

from __future__ import annotations

import pytest

from hora.ops.table import FUNCTIONS, TABLE, Collective, Form
from hora.types import Kind


def test_every_function_has_its_own_name() -> None:
    assert len(FUNCTIONS) == sum(len(collective.forms) for collective in TABLE)


def test_every_kind_of_the_transport_is_in_the_table() -> None:
    assert {collective.kind for collective in TABLE} - {None} == set(Kind)


@pytest.mark.parametrize("collective", TABLE, ids=lambda c: c.name)
def test_rows_are_complete(collective: Collective) -> None:
    assert collective.summary.endswith(".")
    assert all(argument.doc for argument in collective.arguments)
    moves_tensors = bool(collective.dtypes)
    assert moves_tensors == any(argument.name == "tensor" for argument in collective.arguments)
    takes_op = any(argument.name == "op" for argument in collective.arguments)
    assert takes_op == bool(collective.ops)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("allreduce", "tensor average name compression op prescale_factor postscale_factor process_set"),
        ("allreduce_async_", "tensor average name op prescale_factor postscale_factor process_set"),
        ("grouped_allreduce", "tensors average name compression op prescale_factor postscale_factor process_set"),
        ("allgather", "tensor name process_set"),
        ("broadcast_", "tensor root_rank name process_set"),
        ("alltoall", "tensor splits name process_set"),
        ("reducescatter", "tensor name compression op process_set prescale_factor postscale_factor"),
        ("sparse_allreduce_async", "tensor name op process_set"),
        ("barrier", "process_set"),
        ("join", "device average_active"),
    ],
)
def test_signatures_are_horovods(function: str, parameters: str) -> None:
    collective, form = FUNCTIONS[function]
    assert [argument.name for argument in collective.parameters(form)] == parameters.split()


def test_forms_know_what_they_are() -> None:
    assert [form for form in Form if form.grouped and form.in_place] == [
        Form.GROUPED_INPLACE,
        Form.GROUPED_ASYNC_INPLACE,
    ]
    assert sum(form.asynchronous for form in Form) == 4
