"""The table is consistent with itself."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType

import numpy as np
import pytest

from hora import types
from hora.engine import session
from hora.engine.process_set import global_process_set
from hora.errors import UnsupportedError
from hora.ops import dialects, forms, host
from hora.ops.call import Call, Results
from hora.ops.compression import Compression
from hora.ops.forms import Forms
from hora.ops.operation import _BEGIN, start
from hora.ops.table import BACKWARD, FUNCTIONS, TABLE, TENSOR, Collective, Form
from hora.types import DType, Kind, ReduceOp, Rows


def test_every_function_has_its_own_name() -> None:
    assert len(FUNCTIONS) == sum(len(collective.forms) for collective in TABLE)


def test_every_kind_of_the_transport_is_in_the_table() -> None:
    assert {collective.kind for collective in TABLE} - {None} == set(Kind)


@pytest.mark.parametrize("collective", TABLE, ids=lambda c: c.name)
def test_rows_are_complete(collective: Collective) -> None:
    assert collective.summary.endswith(".")
    assert all(argument.doc for argument in collective.arguments)
    takes_op = any(argument.name == "op" for argument in collective.arguments)
    assert takes_op == bool(collective.ops)
    assert bool(collective.gradient) == (collective.backward is not None)
    if collective.ops and collective.kind is not Kind.ALLGATHER:
        assert collective.kind is not None and collective.ops == collective.kind.ops


def test_nothing_is_left_out_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten raises, and is never carried out as another."""
    assert {kind.rows for kind in Kind} == set(Rows) == set(_BEGIN)
    assert set(BACKWARD) == {collective.kind for collective in TABLE if collective.arguments[0] is TENSOR}
    monkeypatch.delitem(types._ROWS, Kind.BROADCAST)
    with pytest.raises(KeyError):
        start(host._ADAPTER, Call(Kind.BROADCAST, "x", global_process_set), [np.ones(2)])


class HostForms(Forms[host.Array]):
    def dtype_of(self, tensor: host.Array) -> DType:
        return host.dtype_of(tensor)

    def carry(self, call: Call, tensors: list[host.Array], in_place: bool) -> Results[host.Array]:
        return host.start(call, tensors, tensors if in_place else None).wait()


def test_a_row_is_all_that_a_front_end_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe in ARCHITECTURE.md, for what is above the engine."""
    parts = next(collective for collective in TABLE if collective.name == "reducescatter")
    row = dataclasses.replace(parts, name="deal", summary="Deal out the sum.", forms=(Form.SYNC, Form.GROUPED))
    monkeypatch.setattr(dialects, "TABLE", (row,))
    monkeypatch.setattr(forms, "TABLE", (row,))
    place = ModuleType("hora_front_end_of_a_test")
    place.__file__ = __file__
    monkeypatch.setitem(sys.modules, place.__name__, place)
    dialect = dialects.Dialect("Any", "Any", (Form.SYNC, Form.GROUPED))
    assert forms.make(dialect, HostForms(), place.__name__, Compression=Compression) == ["deal", "grouped_deal"]
    session.init()
    try:
        assert place.deal(np.array([1.0, 2.0]), op=ReduceOp.SUM, prescale_factor=3.0).tolist() == [3.0, 6.0]
        first, second = place.grouped_deal([np.ones(2), np.zeros((1, 2))])
        assert first.tolist() == [1.0, 1.0] and second.tolist() == [[0.0, 0.0]]
        with pytest.raises(UnsupportedError, match="deal: op=Max"):
            place.deal(np.ones(2), op=ReduceOp.MAX)
    finally:
        session.shutdown()
    assert place.deal.__doc__.startswith("Deal out the sum.")


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
