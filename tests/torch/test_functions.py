"""How an optimizer's state travels: its tensors apart from the rest. Between workers it is tried in tests/multi."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from hora.torch.functions import _TensorsOutOfBand


def test_tensors_stay_out_of_the_bytes_and_one_that_occurs_twice_stays_one() -> None:
    parameters = [torch.ones(1000), torch.zeros(2)]
    moment, step = torch.full((3, 2), 5.0, dtype=torch.float64), torch.tensor(7)
    state = {"of": parameters[1], "moment": moment, "again": moment, "step": step, "rate": 0.1}

    sender, data = _TensorsOutOfBand(parameters), io.BytesIO()
    pickler = pickle.Pickler(data)
    pickler.persistent_id = sender.persistent_id  # type: ignore[method-assign,assignment]
    pickler.dump((state, parameters[0]))
    assert len(data.getvalue()) < 1000
    assert [id(tensor) for tensor in sender.tensors] == [id(moment), id(step)]

    others = [torch.zeros(1000), torch.zeros(2)]
    receiver, unpickler = _TensorsOutOfBand(others), pickle.Unpickler(io.BytesIO(data.getvalue()))
    unpickler.persistent_load = receiver.persistent_load  # type: ignore[method-assign,assignment]
    received: dict[str, Any]
    received, first = unpickler.load()
    assert first is others[0] and received["of"] is others[1] and received["rate"] == 0.1
    assert received["moment"] is received["again"] is receiver.tensors[0] and received["step"] is receiver.tensors[1]
    assert [(t.shape, t.dtype) for t in receiver.tensors] == [(t.shape, t.dtype) for t in (moment, step)]
