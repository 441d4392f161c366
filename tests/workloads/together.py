"""What two workers find out together; run by ``hora run``, looked at by ``test_together``.

``python -m tests.workloads.together DIGITS FOLDER [ddp]``: each check is a function, run on both ranks;
FOLDER/rank-N.json has what went wrong in each, or nothing. With ``ddp``, those that need all of torch.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.light import light_torch

if __name__ == "__main__" and "ddp" not in sys.argv:
    light_torch()

import torch
from tests.workloads import tiny

import hora.torch as hvd
from hora.engine import preempt
from hora.errors import BadData, NonFiniteError, UsageError
from hora.workloads import agree
from hora.workloads.metrics import Means
from hora.workloads.mnist import train as mnist
from hora.workloads.mnist.data import load
from hora.workloads.mnist.options import Options
from hora.workloads.strategy import leave

Check = Callable[[Path, Path], None]
CHECKS: dict[str, Check] = {}
DDP_CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def check_ddp(function: Check) -> Check:
    DDP_CHECKS[function.__name__] = function
    return function


@check
def a_file_that_one_rank_cannot_read_fails_on_both(digits: Path, folder: Path) -> None:
    place = digits if hvd.rank() == 0 else folder / "nowhere"
    with pytest.raises(BadData, match=r"failed on some ranks:\n  rank 1: there is no folder"):
        agree.everywhere(load, place)
    with pytest.raises(BadData, match=r"^there is no folder [^:]*\. MNIST"):  # the same on all: one message
        agree.everywhere(load, folder / "nowhere")


@check
def what_the_first_rank_finds_all_get(digits: Path, folder: Path) -> None:
    def only(number: int) -> int:
        assert hvd.rank() == 0
        if number < 0:
            raise UsageError(f"{number} is too small")
        return number

    assert agree.on_first(only, 7) == 7
    with pytest.raises(UsageError, match="-1 is too small"):
        agree.on_first(only, -1)


@check
def data_that_differs_between_ranks_is_a_table(digits: Path, folder: Path) -> None:
    agree.same({"samples": 7})
    table = "classes is not the same on all ranks:\n  rank 0: 10\n  rank 1: 11"
    with pytest.raises(UsageError, match=re.escape(table)):
        agree.same({"samples": 7, "classes": 10 + hvd.rank()})


@check
def means_of_unequal_numbers_of_samples(digits: Path, folder: Path) -> None:
    means = Means()
    for samples, loss in [(3, 1.0), (1, 5.0)] if hvd.rank() == 0 else [(4, 0.5)]:
        means.add(samples, {"loss": torch.tensor(loss)})
    assert means.reduced() == {"loss": (3 * 1.0 + 1 * 5.0 + 4 * 0.5) / 8}
    if hvd.rank() == 0:
        means.clear()  # a rank without samples
    assert means.reduced() == {"loss": 0.5}


@check
def a_loss_that_is_not_a_number_on_one_rank_ends_both(digits: Path, folder: Path) -> None:
    out = str(folder / "nan")
    with pytest.raises(NonFiniteError, match=r"step 4: gradients that are not finite on rank 1"):
        tiny.train(tiny.Options.of({"out": out, "fail_at": 3, "fail_on": 1}))
    hvd.barrier()


@check
def options_that_differ_are_refused(digits: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--seed is not the same on all ranks:\n  rank 0: 1\n  rank 1: 2"):
        tiny.train(tiny.Options.of({"out": str(folder / "seed"), "seed": 1 + hvd.rank()}))


@check
def four_emulated_by_two(digits: Path, folder: Path) -> None:
    result, state = tiny.train(tiny.Options.of({"out": str(folder / "four"), "epochs": 3, "emulate_workers": 4}))
    assert (result["workers"], result["emulated_workers"]) == (2, 4)
    if hvd.rank() == 0:
        torch.save(state, folder / "four.pt")


def of_mnist(folder: Path, digits: Path, **given: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    options = {"data": str(digits), "out": str(folder), "network": "horovod", "batch": 30, "epochs": 2, **given}
    hvd.shutdown()  # as if it were another process: names of gradients are numbered
    result = mnist.train(Options.of(options))
    return result, torch.load(result["checkpoint"], weights_only=True)["model"]


@check_ddp
def ddp_learns_what_hora_does(digits: Path, folder: Path) -> None:
    for number, given in enumerate([{}, {"emulate_workers": 4}, {"accumulate": 2, "optimizer": "adam", "epochs": 1}]):
        both = []
        for strategy in ("hora", "ddp"):
            hvd.shutdown()
            options = {"out": str(folder / f"{strategy}-{number}"), "strategy": strategy, **given}
            both.append(tiny.train(tiny.Options.of(options)))
        (expected, theirs), (found, ours) = both
        assert found["strategy"] == "ddp" and found["steps"] == expected["steps"]
        assert found["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)
    leave()


@check_ddp
def a_checkpoint_of_hora_goes_on_with_ddp(digits: Path, folder: Path) -> None:
    _, expected = of_mnist(folder / "whole-by-hora", digits)
    of_mnist(folder / "by-both", digits, max_steps=13)
    result, found = of_mnist(folder / "by-both", digits, resume="auto", strategy="ddp")
    assert result["strategy"] == "ddp"
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
    leave()


@check
def a_compressors_memory_goes_on_too(digits: Path, folder: Path) -> None:
    given = {"compression": "one_bit", "lr": 0.001}
    _, expected = of_mnist(folder / "whole", digits, **given)
    of_mnist(folder / "parts", digits, max_steps=13, **given)
    _, found = of_mnist(folder / "parts", digits, resume="auto", **given)
    assert {name for name in expected if not torch.equal(found[name], expected[name])} == set()


@check
def a_set_that_cannot_be_halved_is_validated_exactly(digits: Path, folder: Path) -> None:
    result, state = of_mnist(folder / "uneven", digits, val_batch=20)
    model = mnist.network("horovod").eval()
    model.load_state_dict(state)
    test = load(digits, normalized=True).test
    assert len(test) % 2 == 1
    with torch.no_grad():
        images, labels = test.batch(torch.arange(len(test)).numpy())
        scores = model(images)
    assert result["val_accuracy"] == (scores.argmax(1) == labels).double().mean().item()
    assert result["val_loss"] == pytest.approx(torch.nn.functional.cross_entropy(scores, labels).item(), rel=1e-5)


def main(digits: Path, folder: Path, checks: dict[str, Check]) -> None:
    hvd.init()
    found = {}
    for name, function in checks.items():
        try:
            function(digits, folder)
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
        preempt._forget()
    (folder / f"rank-{hvd.rank()}.json").write_text(json.dumps(found))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), DDP_CHECKS if "ddp" in sys.argv else CHECKS)
