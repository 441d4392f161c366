"""Training on CIFAR-10 with Keras, top to bottom. The five lines that make it distributed are marked ``# Hora``."""

from __future__ import annotations

from typing import Any

import keras
from keras.losses import SparseCategoricalCrossentropy

import hora.keras as hvd
from hora.data.loader import BatchPlan
from hora.workloads.agree import everywhere
from hora.workloads.cifar10.data import load
from hora.workloads.cifar10.keras_model import network
from hora.workloads.cifar10.options import Options
from hora.workloads.keras_run import KerasRun, arrays, compression, prepare
from hora.workloads.metrics import checksum, shard

__all__ = ["train"]


def train(options: Options) -> dict[str, Any]:
    """Train, and return the final metrics."""
    hvd.init()  # Hora 1
    prepare(options)
    data = everywhere(load, options.data_folder)

    model = network(options.network, options.depth, options.l2)
    plan = options.plan(len(data.train), hvd.size())
    optimizer = hvd.DistributedOptimizer(  # Hora 2
        keras.optimizers.SGD(plan.peak_lr, momentum=options.momentum), compression=compression(options),
        backward_passes_per_step=options.accumulate, average_aggregated_gradients=True,
    )  # fmt: skip
    # Keras's loss has the L2 penalty in it; the cross entropy is what other programs call the loss.
    cross_entropy = keras.metrics.SparseCategoricalCrossentropy("cross_entropy", from_logits=True)
    model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy", cross_entropy])

    def batch(plan: BatchPlan) -> Any:
        taken = data.train.augmented(plan, options.seed) if augment else data.train.batch(plan.indices)
        return arrays(taken)

    augment = options.augment == "yes"
    facts = {"test samples": len(data.test), "labels": checksum(data.train.labels)}
    with KerasRun(options, plan, model, facts=facts, generated=data.generated) as run:
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # Hora 3
            hvd.callbacks.MetricAverageCallback(),  # Hora 4
            run.callback,  # sets the learning rate, counts steps, saves if the job must end
        ]
        for epoch in run.epochs():  # continues where a checkpoint was written
            if run.steps_left:
                batches = run.batches(batch(plan) for plan in run.plans(epoch))
                model.fit(
                    batches, steps_per_epoch=run.batches_left, initial_epoch=epoch, epochs=epoch + 1, shuffle=False,
                    verbose=0, callbacks=callbacks,
                )  # fmt: skip
            if options.validate:
                mine = shard(len(data.test), options.val_batch)  # Hora 5: each rank validates its part
                run.validated(run.evaluate(model, (arrays(data.test.batch(indices)) for indices in mine)))
        result = run.result()
        run.tell_test()
    return result
