"""``reduce_gradients``: the parameters of a model, without the optimizer."""

from __future__ import annotations

import torch

from hora.torch.compression import OneBit, reduce_gradients


def test_every_parameter_that_trains_takes_part() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Linear(20, 5), torch.nn.Linear(5, 5))
    model[2].requires_grad_(False)
    model[0](torch.ones(3, 10)).sum().backward()  # the second layer gets no gradient
    before = {name: None if p.grad is None else p.grad for name, p in model.named_parameters()}
    compressor = OneBit(smallest=50)
    reduce_gradients(model.named_parameters(), compressor)
    assert list(compressor.state_dict()["memory"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for name, parameter in model.named_parameters():
        if name.startswith("0"):
            assert parameter.grad is before[name], "the gradient stays where it is"
        elif name.startswith("1"):
            assert parameter.grad is not None and not parameter.grad.any()
        else:
            assert parameter.grad is None
