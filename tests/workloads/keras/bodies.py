"""What workers that train with Keras find out; run by ``hora run``, looked at by ``test_keras_run`` and others.

``python -m tests.workloads.keras.bodies DIGITS FOLDER``: each body is a function, run on all ranks; FOLDER/rank-N.json
has what went wrong in each, or nothing.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import torch
from tests.workloads import tiny
from tests.workloads.keras.ranks import main, on

import hora.keras as hvd
from hora.config import env
from hora.data.generated import mark_generated
from hora.engine import preempt
from hora.errors import DamagedCheckpoint, NonFiniteError, UsageError
from hora.workloads.cifar10 import keras_model as cifar10_model
from hora.workloads.cifar10.model import network as torch_cifar10
from hora.workloads.cifar10.options import Options as CifarOptions
from hora.workloads.keras_run import KerasRun, arrays, compression, prepare
from hora.workloads.metrics import shard
from hora.workloads.mnist import keras_train as mnist
from hora.workloads.mnist.data import load
from hora.workloads.mnist.keras_model import network as keras_mnist
from hora.workloads.mnist.model import network as torch_mnist
from hora.workloads.mnist.options import Options as MnistOptions
from hora.workloads.order import SampleOrder
from hora.workloads.turns import BLOCK, MODES, WARM_UP, steps_for
from hora.workloads.turns import taken as turns_taken

State = dict[str, np.ndarray[Any, Any]]


# ---- a workload of seconds ----


def network(plain: bool) -> Any:
    """With batch normalisation and dropout, or without anything that depends on how samples are grouped."""
    layers = keras.layers
    more = [] if plain else [layers.BatchNormalization(), layers.Dropout(0.3)]
    return keras.Sequential(
        [keras.Input((tiny.FEATURES,)), layers.Dense(16, activation="relu"), *more, layers.Dense(tiny.CLASSES)]
    )


def made(options: Any, plan: Any, plain: bool) -> Any:
    model = network(plain)
    kinds = {"sgd": lambda: keras.optimizers.SGD(plan.peak_lr, momentum=0.9), "adam": keras.optimizers.Adam}
    optimizer = hvd.DistributedOptimizer(
        kinds[options.optimizer](), compression=compression(options), backward_passes_per_step=options.accumulate,
        average_aggregated_gradients=True,
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def train(out: Path, plain: bool = False, by_hand: bool = False, **given: Any) -> tuple[dict[str, Any], State]:
    """The final metrics and the trained variables: of a model that is fitted, or of two, trained batch by batch."""
    hvd.shutdown()  # as if it were another process: names of gradients are numbered
    hvd.init()
    options: Any = tiny.Options.of({"framework": "keras", "out": str(out), "lr": 0.05, **given})
    prepare(options)
    x, y = (tensor.numpy() for tensor in tiny.data())
    plan = options.plan(tiny.SAMPLES, hvd.size())
    models = {"one": made(options, plan, plain), "two": made(options, plan, plain)} if by_hand else None
    model = made(options, plan, plain) if models is None else models["one"]

    def batch(run: KerasRun, plan: Any) -> Any:
        if plan.step == options.signal_at and not plan.epoch and hvd.rank() == hvd.size() - 1:
            signal.raise_signal(signal.SIGTERM)
        if options.fail_at < 0:
            return x[plan.indices], y[plan.indices]
        # Not a number by its weight: one among the inputs would not pass the ReLU on every processor.
        fails = plan.step == options.fail_at and hvd.rank() == options.fail_on
        return x[plan.indices], y[plan.indices], np.full(len(plan.indices), np.nan if fails else 1.0, "float32")

    try:
        with KerasRun(options, plan, models or model) as run:
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), run.callback]
            for epoch in run.epochs():
                if models:
                    for batches in run.steps(batch(run, plan) for plan in run.plans(epoch)):
                        for each in models.values():
                            for taken in batches:
                                found = each.train_on_batch(*taken, return_dict=True)
                                run.count(len(taken[1]), loss=found["loss"])
                        run.step()
                elif run.steps_left:
                    model.fit(
                        run.batches(batch(run, plan) for plan in run.plans(epoch)), steps_per_epoch=run.batches_left,
                        initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=0, callbacks=callbacks,
                    )  # fmt: skip
                run.validated(run.evaluate(model, ((x[i], y[i]) for i in shard(tiny.SAMPLES, 50))))
    finally:
        preempt._forget()
    variables = [v for each in (models or {"": model}).values() for v in [*each.variables, *each.optimizer.variables]]
    state = {f"{n} {v.path}": keras.ops.convert_to_numpy(v).copy() for n, v in enumerate(variables)}
    return run.result(), {name: value for name, value in state.items() if "seed_generator" not in name}


def lines(out: Path, *leave_out: str) -> list[dict[str, Any]]:
    """The record, without what depends on the clock."""
    left = {"images_per_s", "data_s", "epoch_s", "train_s", *leave_out}
    read = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in left} for line in read]


def assert_same(found: State, expected: State) -> None:
    """Layers are numbered on in a process, so names differ; the order does not."""
    pairs = zip(found.values(), expected.values(), strict=True)
    assert [name for name, (a, b) in zip(expected, pairs, strict=True) if not np.array_equal(a, b)] == []


# ---- the networks ----


def give(model: Any, theirs: torch.nn.Module) -> None:
    """Put a torch network's weights, made random, into the Keras one: layers in order of their creation."""
    torch.manual_seed(2)
    kinds: dict[type, list[torch.nn.Module]] = {}
    for module in theirs.modules():
        if not list(module.children()):
            kinds.setdefault(type(module), []).append(module)
            for tensor in [*module.parameters(), *module.buffers()]:
                if tensor.is_floating_point():
                    tensor.data.uniform_(0.5, 1.5) if tensor.ndim == 1 else tensor.data.mul_(1.5)
    for layer in sorted(model.layers, key=lambda layer: int((re.findall(r"_(\d+)$", layer.name) or [0])[0])):
        if isinstance(layer, keras.layers.Conv2D):
            other: Any = kinds[torch.nn.Conv2d].pop(0)
            layer.set_weights([other.weight.detach().permute(2, 3, 1, 0).numpy(), other.bias.detach().numpy()])
        elif isinstance(layer, keras.layers.BatchNormalization):
            other = kinds[torch.nn.BatchNorm2d].pop(0)
            parts = (other.weight, other.bias, other.running_mean, other.running_var)
            layer.set_weights([tensor.detach().numpy() for tensor in parts])
        elif isinstance(layer, keras.layers.Dense):
            other = kinds[torch.nn.Linear].pop(0)
            weight = other.weight.detach()
            if layer.name == "fc1":  # after the images: the channels are last there
                side = int((weight.shape[1] // (64 if weight.shape[1] == 3136 else 20)) ** 0.5)
                weight = weight.reshape(len(weight), -1, side, side).permute(0, 2, 3, 1).reshape(len(weight), -1)
            layer.set_weights([weight.T.numpy(), other.bias.detach().numpy()])
    assert not any(kinds.get(kind) for kind in (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear))


@on(1)
def networks_compute_what_torchs_do(digits: Path, folder: Path) -> None:
    for name, parameters in (("tensorflow", 3_274_634), ("horovod", 21_840)):
        model, theirs = keras_mnist(name), torch_mnist(name).eval()
        assert model.count_params() == parameters
        assert_alike(model, theirs, torch.rand(3, 1, 28, 28))
    assert cifar10_model.network("v2", 56, 1e-4).count_params() == 1_673_738
    assert cifar10_model.network("v1", 56, 1e-4).count_params() == 861_770
    for name, depth in (("v2", 20), ("v1", 14)):
        model, theirs = cifar10_model.network(name, depth, 1e-4), torch_cifar10(name, depth).eval()
        assert_alike(model, theirs, torch.rand(3, 3, 32, 32))


def assert_alike(model: Any, theirs: torch.nn.Module, images: torch.Tensor) -> None:
    give(model, theirs)
    with torch.no_grad():
        expected = theirs(images).numpy()
    found = keras.ops.convert_to_numpy(model(arrays((images, images))[0], training=False))
    scale = np.abs(expected).max()
    assert scale > 0 and np.abs(found - expected).max() < 1e-4 * scale


@on(1)
def examples_in_the_code(digits: Path, folder: Path) -> None:
    for name in ("keras_run", "keras_backend", "mnist.keras_model", "cifar10.keras_model"):
        module = importlib.import_module(f"hora.workloads.{name}")
        hvd.shutdown()
        with contextlib.redirect_stdout(io.StringIO()) as said:
            found = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert found.attempted and not found.failed, said.getvalue()


# ---- a run ----


@on(1, 2)
def interrupted_or_not_the_bits_are_the_same(digits: Path, folder: Path) -> None:
    """At the end of an epoch, and in its middle by a signal; in the middle of a warm-up."""
    given = {"epochs": 2, "optimizer": "adam", "last": "keep", "accumulate": 2, "batch": 4, "warmup": "iteration:2"}
    result, expected = train(folder / "whole", **given)
    for epochs in (1, 2):
        again, state = train(folder / "by epochs", resume="auto", **{**given, "epochs": epochs})
    assert_same(state, expected)
    assert {k: again[k] for k in ("steps", "samples", "val_loss")} == {
        k: result[k] for k in ("steps", "samples", "val_loss")
    }
    if hvd.rank() == 0:
        assert lines(folder / "by epochs") == lines(folder / "whole")

    with pytest.raises(SystemExit) as left:
        train(folder / "signal", **given, signal_at=6)
    assert left.value.code == 75
    if hvd.rank() == 0:
        (saved,) = (folder / "signal").glob("*.h5")
        assert re.fullmatch(r"checkpoint-0-step-[1-5]\.h5", saved.name)  # batches are made ahead of their use
    ended, _ = train(folder / "time", **given, max_minutes=1e-9)
    assert 1 <= ended["steps"] <= 5 and "val_loss" in ended
    _, state = train(folder / "time", resume="auto", **given)
    assert_same(state, expected)
    _, state = train(folder / "signal", resume="auto", **given)
    assert_same(state, expected)
    if hvd.rank() == 0:
        means = ("loss", "accuracy")  # which are added up by parts
        assert lines(folder / "signal", *means) == lines(folder / "whole", *means)
        for ours, theirs in zip(lines(folder / "signal"), lines(folder / "whole"), strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


@on(1, 2)
def a_signal_at_the_last_step_leaves_only_the_validation(digits: Path, folder: Path) -> None:
    """Two networks in a loop without fit; what was done already is not done again."""
    given = {"epochs": 2, "by_hand": True, "save_every": 0.5}
    result, expected = train(folder / "by hand", **given)
    last = result["steps"] // 2 - 1
    with pytest.raises(SystemExit):
        train(folder / "last", **given, signal_at=last)
    _, state = train(folder / "last", resume="auto", **given)
    assert_same(state, expected)
    if hvd.rank() == 0:
        assert lines(folder / "last") == lines(folder / "by hand")
        assert "checkpoint-1-step-" in " ".join(path.name for path in (folder / "last").glob("*.h5"))
    again, state = train(folder / "last", resume="auto", **given)  # it has ended
    assert_same(state, expected)
    assert again["val_loss"] == result["val_loss"] and again["steps"] == result["steps"]


@on(2)
def by_turns_only_steps_together_exchange_gradients(digits: Path, folder: Path) -> None:
    """Fitted, and two networks in a loop; the weights stay as they were, and the same on both ranks."""
    for by_hand, optimizers in ((False, 1), (True, 2)):
        out = folder / f"{optimizers}"
        options: Any = tiny.Options.of({"max_steps": steps_for(BLOCK)})
        with turns_taken(options), env.during(HORA_TIMELINE=str(folder / f"{optimizers}.json")):
            result, state = train(out, by_hand=by_hand, max_steps=options.max_steps, epochs=9, validate=False)
            hvd.shutdown()
        hvd.init()
        found = result["by_turns"]
        assert {mode: [len(steps) for steps in found[mode]] for mode in MODES} == dict.fromkeys(MODES, [BLOCK - 1] * 2)
        mine = folder / f"{optimizers}{f'.rank{hvd.rank()}' if hvd.rank() else ''}.json"
        events = json.loads(mine.read_text())
        tensors = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        begun = [
            tensors[event["pid"]] for event in events if (event["name"], event["ph"]) == ("NEGOTIATE_ALLREDUCE", "B")
        ]
        together = [name for name in begun if "keras.gradients" in name]
        assert len(together) == optimizers * (WARM_UP + BLOCK), begun
        weights = [value for name, value in state.items() if "kernel" in name and "momentum" not in name]
        sums = hvd.allgather_object([float(abs(value).sum()) for value in weights])
        assert sums[0] == sums[1]


@on(1)
def a_checkpoint_is_a_plain_keras_file(digits: Path, folder: Path) -> None:
    result, state = train(folder, epochs=2, keep=0)
    assert result["checkpoint"] == str(folder / "checkpoint-2.h5")
    assert sorted(path.name for path in folder.glob("*.h5")) == ["checkpoint-1.h5", "checkpoint-2.h5"]
    model = keras.models.load_model(result["checkpoint"])
    x, y = (tensor.numpy() for tensor in tiny.data())
    assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] == pytest.approx(result["val_accuracy"])
    distributed = hvd.load_model(result["checkpoint"])  # with the optimizer's state, which Keras 3.15 itself loses
    values = [*distributed.variables, *distributed.optimizer.variables]
    values = [v for v in values if "seed_generator" not in v.path]
    for value, expected in zip(values, state.values(), strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(value), expected)
    with h5py.File(result["checkpoint"], "r") as file:
        ours = json.loads(file.attrs["hora"])
    assert (ours["epoch"], ours["framework"], ours["run"]["samples_seen"]) == (2, "keras", result["samples"])
    assert ours["run"]["options"]["framework"] == "keras" and ours["run"]["plan"]["workers"] == 1

    distributed.save(folder / "theirs-7.h5")  # somebody else's: the weights, and what its name says
    again, _ = train(folder / "on", epochs=8, max_steps=7 * 25 + 2, resume=str(folder / "theirs-7.h5"))
    assert [line["epoch"] for line in lines(folder / "on")] == [7, 7, 7] and again["steps"] == 7 * 25 + 2


@on(1)
def checkpoints_that_do_not_fit_are_refused(digits: Path, folder: Path) -> None:
    train(folder / "a", epochs=2)
    with pytest.raises(UsageError, match=r"there is a run in .* already, up to checkpoint-2\.h5.*--resume auto"):
        train(folder / "a", epochs=2)
    with pytest.raises(UsageError, match="there is no such file"):
        train(folder / "a", resume=str(folder / "nothing.h5"))
    (folder / "junk.h5").write_bytes(b"junk")
    with pytest.raises(DamagedCheckpoint, match="not a checkpoint of Keras"):
        train(folder / "new", resume=str(folder / "junk.h5"))
    with pytest.raises(UsageError, match=r"does not fit this run: .*another network or optimizer"):
        train(folder / "new", plain=True, resume=str(folder / "a" / "checkpoint-1.h5"))
    with pytest.raises(UsageError, match=r"does not fit this run: .*another network or optimizer"):
        train(folder / "new", optimizer="adam", resume=str(folder / "a" / "checkpoint-1.h5"))
    assert not (folder / "new").exists()

    whole = (folder / "a" / "checkpoint-2.h5").read_bytes()
    (folder / "a" / "checkpoint-2.h5").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match=r"checkpoint-2\.h5 is damaged"):
        train(folder / "new", resume=str(folder / "a" / "checkpoint-2.h5"))
    _, state = train(folder / "a", epochs=2, resume="auto")  # from the one before it
    _, expected = train(folder / "b", epochs=2)
    assert_same(state, expected)
    train(folder / "b", epochs=1, overwrite=True)
    assert [path.name for path in (folder / "b").glob("*.h5")] == ["checkpoint-1.h5"]


@on(1)
def a_checkpoint_of_torch_is_told(digits: Path, folder: Path) -> None:
    torchs = folder / "torchs.pt"
    torch.save({"epoch": 1, "model": {}}, torchs)
    with pytest.raises(UsageError, match=r"torchs\.pt is a checkpoint of --framework torch"):
        train(folder / "new", resume=str(torchs))


@on(1, 2)
def every_step_is_in_the_record(digits: Path, folder: Path) -> None:
    """Numbers that numpy computes: the first loss, the rates; the samples are those of torch's run."""
    result, _ = train(folder, plain=True, epochs=2, warmup="iteration:1", base_batch=4, val_batch=50, log_every=5)
    assert {"workload", "framework", "workers", "val_loss", "val_accuracy", "images_per_s", "checkpoint"} <= set(result)
    assert (result["framework"], result["workers"]) == ("keras", hvd.size())
    if hvd.rank():
        return
    *steps, epoch = [line for line in lines(folder) if line["epoch"] == 0]
    every = tiny.SAMPLES // (8 * hvd.size())
    assert [line["step"] for line in steps] == list(range(1, every + 1))
    peak = 0.05 * 8 * hvd.size() / 4
    assert [line["lr"] for line in steps] == pytest.approx([0.05 + (peak - 0.05) * n / every for n in range(every)])
    assert list(steps[0])[3:5] == ["loss", "accuracy"] and list(epoch)[3:] == [
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
    ]

    options: Any = tiny.Options.of({})
    prepare(options)  # the same initial weights
    weights = network(True).get_weights()
    x, y = (tensor.numpy() for tensor in tiny.data())
    mine = SampleOrder(tiny.SAMPLES, hvd.size(), options).plans(range(1))[0].indices
    scores = np.maximum(x[mine] @ weights[0] + weights[1], 0) @ weights[2] + weights[3]
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert steps[0]["loss"] == pytest.approx(-np.log(chances[np.arange(len(mine)), y[mine]]).mean(), rel=1e-5)
    assert steps[0]["accuracy"] == pytest.approx((scores.argmax(1) == y[mine]).mean())
    if hvd.size() == 1:
        assert epoch["loss"] == pytest.approx(np.mean([line["loss"] for line in steps]), rel=1e-5)


@on(1, 2)
def workers_together_are_one_with_a_larger_batch(digits: Path, folder: Path) -> None:
    """16 samples a step: of one worker, of one that accumulates them, or of two."""
    given: dict[str, Any] = {"plain": True, "epochs": 2, "base_batch": 16}
    result, state = train(folder / "large", batch=16 // hvd.size(), **given)
    accumulated, same = train(folder / "small", batch=8 // hvd.size(), accumulate=2, **given)
    for found, expected in zip(list(same.values())[:4], list(state.values())[:4], strict=True):  # the weights
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert accumulated["val_loss"] == pytest.approx(result["val_loss"], rel=1e-4)
    if hvd.rank() == 0:
        np.savez(folder / "state.npz", **{str(n): value for n, value in enumerate(state.values())})


@on(1)
def momentum_follows_the_rate_as_in_torch(digits: Path, folder: Path) -> None:
    given: dict[str, Any] = {"decay": "cosine", "epochs": 1.0}
    options: Any = tiny.Options.of({"framework": "keras", **given})
    prepare(options)
    dense = [layer.get_weights() for layer in network(plain=True).layers]  # what the run will begin with
    model = torch.nn.Sequential(torch.nn.Linear(tiny.FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, tiny.CLASSES))
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), (array for pair in dense for array in pair), strict=True):
            mine.copy_(torch.from_numpy(theirs.T.copy()))
    order, plan = SampleOrder(tiny.SAMPLES, 1, options), options.plan(tiny.SAMPLES, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=plan.peak_lr, momentum=0.9)
    x, y = tiny.data()
    rates = set()
    for batch in order.plans(range(1)):
        sgd.param_groups[0]["lr"] = plan.lr_at_epoch(order.position)
        rates.add(sgd.param_groups[0]["lr"])
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch.indices]), y[batch.indices]).backward()
        sgd.step()
        order.advance()
    assert len(rates) == tiny.SAMPLES // options.batch
    _, found = train(folder / "run", plain=True, **given)
    for array, parameter in zip(found.values(), model.parameters(), strict=False):
        np.testing.assert_allclose(array, parameter.detach().numpy().T, rtol=1e-3, atol=1e-5)


@on(1, 2)
def a_loss_that_is_not_a_number_ends_the_run(digits: Path, folder: Path) -> None:
    last = hvd.size() - 1
    with pytest.raises(NonFiniteError, match=rf"step 4: loss is nan on rank {last}\. It has changed"):
        train(folder, epochs=1, fail_at=3, fail_on=last)
    if hvd.rank() == 0:
        assert [line["step"] for line in lines(folder)] == [1, 2, 3] and list(folder.glob("*.h5")) == []


@on(2)
def what_differs_between_ranks_is_refused(digits: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--seed is not the same on all ranks:\n  rank 0: 1\n  rank 1: 2"):
        train(folder, seed=1 + hvd.rank())
    train(folder, epochs=1, plain=True)
    with pytest.raises(UsageError, match=r"checkpoint-1\.h5 does not fit this run"):  # which rank 0 finds
        train(folder, epochs=2, resume="auto")


@on(2)
def random_numbers_are_each_workers_own_and_statistics_are_averaged(digits: Path, folder: Path) -> None:
    """Both begin with the same weights and, here, see the same samples: what differs are dropout and its traces."""
    x, y = (tensor.numpy() for tensor in tiny.data())
    hvd.shutdown()
    hvd.init()
    options: Any = tiny.Options.of({"framework": "keras", "out": str(folder), "seed": 3})
    prepare(options)
    plan = options.plan(tiny.SAMPLES, hvd.size())
    model = made(options, plan, plain=False)
    norm = next(layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization))
    with KerasRun(options, plan, model) as run:
        run._begin_batch()
        loss = float(model.train_on_batch(x[:16], y[:16], return_dict=True)["loss"])
        assert len(set(hvd.allgather_object(loss))) == 2
        norm.moving_mean.assign(np.full(16, 1.0 + 2 * hvd.rank()))
        run._average()
        assert set(keras.ops.convert_to_numpy(norm.moving_mean)) == {2.0}
        run._separate()
        assert set(keras.ops.convert_to_numpy(norm.moving_mean)) == {1.0 + 2 * hvd.rank()}
    preempt._forget()


@on(1)
def precision_and_compression(digits: Path, folder: Path) -> None:
    result, _ = train(folder / "bf16", precision="bf16", epochs=1)
    assert result["precision"] == "bf16" and keras.config.dtype_policy().compute_dtype == "bfloat16"
    assert keras.models.load_model(result["checkpoint"]).layers[0].compute_dtype == "bfloat16"
    if keras.config.backend() == "torch":
        train(folder / "memory", compression="one_bit", epochs=1)
    else:
        with pytest.raises(UsageError, match=r"--compression one_bit: Keras on .* carries"):
            train(folder / "memory", compression="one_bit")


@on(2)
def compressed_gradients_are_close(digits: Path, folder: Path) -> None:
    given: dict[str, Any] = {"plain": True, "epochs": 1}
    _, state = train(folder / "none", **given)
    _, found = train(folder / "fp16", compression="fp16", **given)
    differs = [np.abs(a - b).max() for a, b in zip(found.values(), state.values(), strict=True)]
    assert 0 < max(differs) < 1e-2


# ---- the workloads ----


@on(1, 2)
def a_short_run_on_digits_learns(digits: Path, folder: Path) -> None:
    """131 to test on, which cannot be halved; what is printed is what the checkpoint computes."""
    options = {
        "data": str(digits),
        "batch": 20 // hvd.size(),
        "base_batch": 20,
        "lr": 0.002,
        "epochs": 1,
        "val_batch": 20,
    }
    hvd.shutdown()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        result = mnist.train(MnistOptions.of({"framework": "keras", "out": str(folder), **options}))
    preempt._forget()
    assert result["val_accuracy"] > 0.9 and result["generated_data"] is False
    if hvd.rank():
        assert said.getvalue() == ""
        return
    test = load(digits).test
    images, labels = arrays(test.batch(np.arange(len(test))))
    model = keras.models.load_model(result["checkpoint"])
    loss, accuracy = model.evaluate(images, labels, verbose=0, batch_size=50)
    assert result["val_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert result["val_loss"] == pytest.approx(loss, rel=1e-4)
    *_, third, second, first = said.getvalue().splitlines()[:-3]  # before those of the end
    assert third.startswith("epoch 1/1 done in")
    assert second == f"Test loss: {result['val_loss']}" and first == f"Test accuracy: {result['val_accuracy']}"


@on(1)
def a_short_run_on_photographs(digits: Path, folder: Path) -> None:
    """The penalty is in the loss, as in Keras's example; the cross entropy is without it."""
    from hora.data.cifar import TEST_FILE, TRAIN_FILES
    from hora.workloads.cifar10 import keras_train as cifar10

    data = folder / "data"
    data.mkdir()
    random = np.random.default_rng(1)
    for name, count in ((TRAIN_FILES[0], 96), (TEST_FILE, 30)):
        records = random.integers(0, 256, (count, 3073)).astype(np.uint8)
        records[:, 0] %= 10
        (data / name).write_bytes(records.tobytes())
    mark_generated(data, generator="noise", seed=1)
    given = {"network": "v1", "depth": 8, "batch": 32, "epochs": 1, "data": str(data), "out": str(folder / "out")}
    hvd.shutdown()
    result = cifar10.train(CifarOptions.of({"framework": "keras", **given}))
    preempt._forget()
    model = keras.models.load_model(result["checkpoint"])
    kernels = [layer.get_weights()[0] for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    penalty = 1e-4 * sum((kernel**2).sum() for kernel in kernels)
    assert result["val_loss"] == pytest.approx(result["val_cross_entropy"] + penalty, rel=1e-4)
    assert result["steps"] == 3 and result["generated_data"]


if __name__ == "__main__":
    main()
