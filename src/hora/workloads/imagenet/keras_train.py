"""Trains a ResNet with Keras on ImageNet, or on any set of images in folders, tar shards or TFRecord shards. The five
lines that make it distributed are marked ``# Hora``."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import metrics

import hora.keras as hvd
from hora.data.loader import BatchPlan, Loader
from hora.keras.adapter import Array
from hora.workloads.agree import everywhere, on_first
from hora.workloads.imagenet.data import Batch, TrainingBatches, ValidationBatches, normalised
from hora.workloads.imagenet.keras_model import load_torch, resnet
from hora.workloads.imagenet.options import Options
from hora.workloads.imagenet.train import STUDY_BATCHES, Pictures, fitting_weights, states_in
from hora.workloads.keras_run import KerasRun, arrays, compression, prepare
from hora.workloads.metrics import shard

__all__ = ["train"]

DECAYING = ("adamw", "lamb")  # optimizers that decay weights themselves
KERAS_FILES = (".h5", ".hdf5", ".keras")


def train(options: Options) -> dict[str, Any]:
    """Train as the options say; the final metrics."""
    hvd.init()  # Hora 1: this process is one worker of many
    pictures = everywhere(Pictures.of, options)
    samples, size = len(pictures.validation), options.image_size
    plan = options.plan(len(pictures.training), hvd.size())
    run: KerasRun | None = None  # until there is one, loaders have nothing to load
    mine = [BatchPlan(indices) for indices in shard(samples, options.batch)]  # Hora 5: each rank validates its part
    with (
        Loader(
            TrainingBatches(pictures.training, size, options.seed), lambda epoch: run.plans(epoch) if run else [],
            processes=options.loaders, epochs=math.ceil(options.epochs),
        ) as training,
        Loader(
            ValidationBatches(pictures.validation, size, options.resize), lambda _: mine if run else [],
            processes=options.loaders,
        ) as validation,
    ):  # fmt: skip
        for loader in (training, validation):
            list(loader.epoch(0))  # begins its processes now: Keras's backend has not begun its threads yet
        prepare(options)
        model = compiled(options, pictures.classes, plan.peak_lr)
        if options.weights:
            on_first(load_weights, model, options.weights)
        facts = {"classes": pictures.classes, "validation samples": samples}
        with KerasRun(options, plan, model, facts=facts, generated=pictures.generated) as run:
            first_times: list[float] = []
            callbacks = [
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # Hora 3: all begin with the same model
                hvd.callbacks.MetricAverageCallback(),  # Hora 4: metrics are those of all workers
                run.callback,  # sets the learning rate, counts steps, saves if the job must end
                keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: first_times.append(run.step_s)),
            ]
            for epoch in run.epochs() if not options.evaluate else ():  # continues where a checkpoint was written
                if run.steps_left:
                    batches = run.batches(prepared(batch, pictures.classes) for batch in training.epoch(epoch))
                    model.fit(
                        batches, steps_per_epoch=run.batches_left, initial_epoch=epoch, epochs=epoch + 1,
                        shuffle=False, verbose=0, callbacks=callbacks,
                    )  # fmt: skip
                if options.validate:
                    run.validated(validated(run, model, validation, pictures.classes, epoch))
            if options.evaluate:
                run.validated(validated(run, model, validation, pictures.classes, 0))
            result = run.result()
            run.tell_test()
    study = first_times[options.accumulate - 1 :: options.accumulate][:STUDY_BATCHES]
    speed = plan.global_batch * len(study) / sum(study) if study else None
    return result | {"arch": options.arch, "study_images_per_s": speed}


def compiled(options: Options, classes: int, lr: float) -> Any:
    """The network with all that it is trained and judged by. Labels are to be vectors, as smoothing needs them."""
    model = resnet(
        options.arch, classes, options.image_size, zero_gamma=options.zero_gamma, small_fc=options.small_fc,
        weight_decay=0.0 if options.optimizer in DECAYING else options.weight_decay,
        decay_weights_only=options.decay_weights_only,
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(  # Hora 2: gradients are averaged over the workers
        optimizer_of(options, model, lr), compression=compression(options),
        backward_passes_per_step=options.accumulate, average_aggregated_gradients=True,
    )  # fmt: skip
    model.compile(
        optimizer,
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=options.label_smoothing),
        metrics=[
            metrics.CategoricalAccuracy("accuracy"),
            metrics.TopKCategoricalAccuracy(min(5, classes), "top5"),
            # Keras's loss has the L2 penalty in it; the cross entropy is what other programs call the loss.
            metrics.CategoricalCrossentropy("cross_entropy", from_logits=True),
        ],
    )
    return model


def optimizer_of(options: Options, model: Any, lr: float) -> Any:
    """The optimizer. Weight decay is the model's, as regularizers; Keras's AdamW and Lamb have their own."""
    if options.optimizer in ("adam", "rmsprop"):
        made: Any = {"adam": keras.optimizers.Adam, "rmsprop": keras.optimizers.RMSprop}[options.optimizer]
        return made(lr)
    if options.optimizer not in DECAYING:
        return keras.optimizers.SGD(lr, options.momentum, nesterov=options.optimizer == "nesterov")
    if options.optimizer == "adamw":
        optimizer: Any = keras.optimizers.AdamW(lr, weight_decay=options.weight_decay)
    else:
        optimizer = keras.optimizers.Lamb(lr, epsilon=1e-6, weight_decay=options.weight_decay)
    if options.decay_weights_only:
        optimizer.exclude_from_weight_decay([v for v in model.trainable_variables if len(v.shape) < 2])
    return optimizer


def prepared(batch: Batch, classes: int) -> tuple[Array, Array]:
    """Images and labels as the model takes them."""
    images, labels = arrays((normalised(batch[0]), batch[1]))
    return images, keras.utils.to_categorical(labels, classes)


def validated(run: KerasRun, model: Any, validation: Loader[Batch], classes: int, epoch: int) -> dict[str, float]:
    """Loss and metrics over the whole validation set, of which every worker takes its share."""
    return run.evaluate(model, (prepared(batch, classes) for batch in validation.epoch(epoch)))


def load_weights(model: Any, path: str) -> None:
    """Take weights from a file of Keras; or of torch, such as torchvision's, or a checkpoint with them inside."""
    with fitting_weights(path):
        if path.endswith(KERAS_FILES):
            model.load_weights(path)
        else:
            load_torch(model, states_in(path))
