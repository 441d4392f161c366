"""ImageNet's and 3DGAN's networks in Keras beside torch's: the same outputs, gradients and files. See ``ranks``."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from tests.workloads.keras.ranks import main, on
from torch.nn import functional

import hora.keras as hvd
from hora.workloads.gan3d import keras_model as gan3d
from hora.workloads.gan3d.data import ShowerBatch
from hora.workloads.gan3d.game import TorchGan as TorchGame
from hora.workloads.gan3d.keras_train import KerasGan
from hora.workloads.gan3d.losses import weighted
from hora.workloads.gan3d.model import Discriminator, Generator
from hora.workloads.gan3d.model import frozen as torch_frozen
from hora.workloads.gan3d.options import Options as GanOptions
from hora.workloads.gan3d.weights import load_weights, save_weights
from hora.workloads.imagenet.keras_model import load_torch, resnet
from hora.workloads.imagenet.keras_train import compiled
from hora.workloads.imagenet.model import resnet as torch_resnet
from hora.workloads.imagenet.options import Options
from hora.workloads.imagenet.train import make_optimizer
from hora.workloads.keras_run import arrays

PARAMETERS = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160}


def to_numpy(tensor: Any) -> Any:
    return keras.ops.convert_to_numpy(tensor)


def size_of(variables: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


# ---- ImageNet ----


@on(1)
def resnets_compute_what_torchs_do(_: Path, folder: Path) -> None:
    torch.manual_seed(0)
    for name in PARAMETERS:
        model = resnet(name, size=64)
        assert size_of(model.trainable_weights) == PARAMETERS[name]
        if name == "resnet50":
            assert size_of(model.non_trainable_weights) == 53_120
        if name in ("resnet18", "resnet50"):  # one of either block
            theirs, images = torch_resnet(name), torch.randn(2, 3, 64, 64)
            theirs(images)  # statistics other than 0 and 1
            load_torch(model, theirs.state_dict())
            with torch.no_grad():
                expected = theirs.eval()(images).numpy()
            found = to_numpy(model(arrays((images, images))[0], training=False))
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(KeyError, match=r"only one of both has layer"):
        load_torch(model, theirs.state_dict())
    with pytest.raises(ValueError, match=r"fc.weight is \(3, 512\), which does not go into \(512, 7\)"):
        load_torch(resnet("resnet18", 7, 32), torch_resnet("resnet18", 3).state_dict())


@on(1)
def steps_on_pictures_are_torchs(_: Path, folder: Path) -> None:
    """Label smoothing, decay of all or of some weights, Nesterov's momentum or not: two steps end with its weights."""
    random = torch.Generator().manual_seed(3)
    images, labels = torch.randn(8, 3, 64, 64, generator=random), torch.tensor([0, 3, 1, 4, 0, 2, 2, 1])
    rate, after = 1e-3, resnet("resnet18", 5, 64)
    recipe: dict[str, Any] = {"optimizer": "nesterov", "decay_weights_only": True, "label_smoothing": 0.1}
    for more in (recipe, {"optimizer": "sgd"}):
        options: Any = Options.of({"arch": "resnet18", "image_size": 64, "weight_decay": 0.1, **more})
        torch.manual_seed(1)
        theirs = torch_resnet("resnet18", 5)
        optimizer = make_optimizer(theirs, options, rate)
        model = compiled(options, 5, rate)
        load_torch(model, theirs.state_dict())
        before = {weight.path: to_numpy(weight).copy() for weight in model.trainable_weights}
        given = arrays((images, labels))[0], keras.utils.to_categorical(labels.numpy(), 5)
        for _step in range(2):
            optimizer.zero_grad()
            scores = theirs(images)
            loss = functional.cross_entropy(scores, labels, label_smoothing=options.label_smoothing)
            plain = functional.cross_entropy(scores.detach(), labels).item()
            decayed = [p for p in theirs.parameters() if p.ndim > 1 or not options.decay_weights_only]
            penalty = sum(0.05 * float((p.detach() ** 2).sum()) for p in decayed)
            loss.backward()
            optimizer.step()
            found = model.train_on_batch(*given, return_dict=True)
            assert found["cross_entropy"] == pytest.approx(plain, rel=1e-3)
            assert found["loss"] == pytest.approx(loss.item() + penalty, rel=1e-3)
            assert found["accuracy"] == (scores.argmax(1) == labels).float().mean() and found["top5"] == 1.0
        load_torch(after, theirs.state_dict())
        for weight, wanted in zip(model.trainable_weights, after.trainable_weights, strict=True):
            assert_moved_alike(to_numpy(weight), to_numpy(wanted), before[weight.path], weight.path)


def assert_moved_alike(found: Any, expected: Any, before: Any, what: str) -> None:
    """By a step, up to what rounding does to it where a gradient is nearly 0 or a ReLU bends."""
    change, error = np.linalg.norm(expected - before), np.linalg.norm(found - expected)
    assert change > 0 and error < 0.1 * change, f"{what}: {error} of {change}"


@on(1)
def beginnings_are_as_asked(_: Path, folder: Path) -> None:
    keras.utils.set_random_seed(1)
    model = resnet("resnet18", 10, 32, zero_gamma=True, small_fc=True, weight_decay=1e-4, decay_weights_only=True)
    zeros = {layer.name for layer in model.layers if hasattr(layer, "gamma") and not to_numpy(layer.gamma).any()}
    assert len(zeros) == 2 + 2 + 2 + 2 and {name[-3:] for name in zeros} == {"bn2"}
    fc, conv = model.get_layer("fc"), model.get_layer("layer4_1_conv2")
    assert to_numpy(fc.kernel).std() == pytest.approx(0.01, rel=0.05) and not to_numpy(fc.bias).any()
    assert to_numpy(conv.kernel).std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert len(model.losses) == 20 + 1  # kernels only


# ---- 3DGAN ----


def used(network: Any) -> Any:
    """With weights and statistics that are all different."""
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
                tensor.uniform_(0.5, 1.5)
            elif tensor.dim() == 1:
                tensor.uniform_(-0.2, 0.2)
    return network.eval()


@on(1)
def showers_are_torchs_by_its_own_files(_: Path, folder: Path) -> None:
    """What torch's run writes, Keras's own ``load_weights`` reads; and what Keras's writes, torch's."""
    torch.manual_seed(0)
    for theirs, model, total, trained in (
        (used(Generator()), gan3d.generator(), 872_948, 872_808),
        (used(Discriminator()), gan3d.discriminator(), 73_450, 73_402),
    ):
        assert (size_of(model.weights), size_of(model.trainable_weights)) == (total, trained)
        save_weights(folder / "torch.hdf5", theirs)
        model.load_weights(folder / "torch.hdf5")
        given = torch.randn(2, 200) if isinstance(theirs, Generator) else torch.rand(2, 1, 25, 25, 25)
        with torch.no_grad():
            expected = theirs(given)
        if isinstance(theirs, Generator):
            found = to_numpy(model.predict_on_batch(given.numpy()))
            assert expected.any()
            np.testing.assert_allclose(found[..., 0], expected[:, 0].numpy(), rtol=1e-3, atol=1e-4)
        else:
            judged = model.predict_on_batch(given.movedim(1, -1).numpy())
            for one, other in zip(judged, expected, strict=True):
                np.testing.assert_allclose(to_numpy(one)[:, 0], other.numpy(), rtol=1e-3, atol=1e-5)
        gan3d.save_weights(folder / "keras.hdf5", model)
        back = type(theirs)()
        load_weights(folder / "keras.hdf5", back)
        for name, tensor in theirs.state_dict().items():
            if tensor.is_floating_point():
                assert torch.equal(tensor, back.state_dict()[name]), name
    assert sorted(path.name for path in folder.iterdir()) == ["keras.hdf5", "torch.hdf5"]


@on(1)
def each_update_is_torchs_and_leaves_the_other_network_alone(_: Path, folder: Path) -> None:
    """Without dropout, by SGD: the same random numbers give the same losses and the same changes of all weights. While
    the generator learns, the discriminator normalises by the batch, and nothing of it changes."""
    options: Any = GanOptions.of({"latent": 8, "flip": 0.5, "ecal_weight": 0.001})
    torch.manual_seed(4)
    theirs = TorchGame(used(Generator(8)), used(Discriminator()), options)
    for module in theirs.discriminator.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    networks: dict[str, Any] = {"generator": gan3d.generator(8), "discriminator": gan3d.discriminator()}
    for name, network in networks.items():
        save_weights(folder / f"{name}.hdf5", getattr(theirs, name))
        network.load_weights(folder / f"{name}.hdf5")
    for layer in networks["discriminator"]._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    rate = 1e-4
    ours = KerasGan(
        **networks,
        optimizers={n: hvd.DistributedOptimizer(keras.optimizers.SGD(rate)) for n in networks},
        options=options,
    )
    random = torch.Generator().manual_seed(5)
    real = ShowerBatch(
        torch.rand(2, 1, 25, 25, 25, generator=random), torch.tensor([1.0, 3.0]), torch.tensor([2.0, 6.0])
    )

    def weights(network: Any) -> list[Any]:
        return [to_numpy(weight).copy() for weight in network.weights]

    for number, (name, ask) in enumerate(
        (("discriminator", "judge_real"), ("discriminator", "judge_generated"), ("generator", "deceive"))
    ):
        other = "generator" if name == "discriminator" else "discriminator"
        before, still = weights(networks[name]), weights(networks[other])
        torch.manual_seed(number)
        found = getattr(ours, ask)(real)
        torch.manual_seed(number)
        network: Any = getattr(theirs, name).train()
        theirs.discriminator.train()
        with torch_frozen(theirs.discriminator) if name == "generator" else contextlib.nullcontext():
            parts = getattr(theirs, ask)(real).mean(0)
            loss = weighted(parts, options.loss_weights)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
        assert found[f"{name}_loss"] == pytest.approx(loss.item(), rel=1e-3)
        columns = ("generation_loss", "auxiliary_loss", "ecal_loss")
        assert [found[f"{name}_{column}"] for column in columns] == pytest.approx(parts.tolist(), rel=1e-3)
        assert all(np.array_equal(one, two) for one, two in zip(still, weights(networks[other]), strict=True))
        with torch.no_grad():
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter -= rate * gradient
        save_weights(folder / "after.hdf5", network)
        after = {"generator": gan3d.generator(8), "discriminator": gan3d.discriminator()}[name]
        after.load_weights(folder / "after.hdf5")
        for old, new, wanted in zip(before, weights(networks[name]), weights(after), strict=True):
            assert_moved_alike(new, wanted, old, f"{ask} {new.shape}")


@on(1)
def examples_in_the_code(_: Path, folder: Path) -> None:
    for name in ("imagenet.keras_model", "gan3d.keras_model"):
        module = importlib.import_module(f"hora.workloads.{name}")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            found = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert found.attempted and not found.failed, said.getvalue()


if __name__ == "__main__":
    main()
