"""What published scripts say to Keras 2 and TensorFlow 1, and Keras 3 and TensorFlow 2 do not take any more.

Only what Horovod's examples say, only where it has one clear meaning today, and only under ``--as-horovod``:

=================================================  ===================================================================
a script says                                      and gets
=================================================  ===================================================================
``compile(experimental_run_tf_function=False)``    ``compile()``: Hora reduces gradients wherever they are applied
``SGD(lr=0.1)``, ``optimizer.lr``                  ``learning_rate``
``optimizer.variables()``                          ``optimizer.variables``, a list today
``optimizers.legacy.Adam``                         ``optimizers.Adam``
``model.fit_generator``, ``evaluate_generator``    ``fit`` and ``evaluate``, without ``workers``, which a data set has
``keras.preprocessing.image.ImageDataGenerator``   that of ``tf.keras``, where it still is
``K.set_value(optimizer.lr, 0.1)``                 ``assign``: Keras 3's own fails on its own variables
``K.set_session(tf.Session(config=…))``            nothing: there are no sessions; ``tf.config`` chooses devices
=================================================  ===================================================================

The last only where ``horovod.keras`` is imported: elsewhere ``hasattr(tf, "ConfigProto")`` asks for the version.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras

__all__ = ["understand", "understand_sessions"]

_OF_GENERATORS = ("workers", "use_multiprocessing", "max_queue_size")

# What follows the generator, in its order there, which differs from today's.
_FIT_GENERATOR = (
    "steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data", "validation_steps", "validation_freq",
    "class_weight", "max_queue_size", "workers", "use_multiprocessing", "shuffle", "initial_epoch",
)  # fmt: skip
_EVALUATE_GENERATOR = ("steps", "callbacks", "max_queue_size", "workers", "use_multiprocessing", "verbose")


@functools.cache
def understand() -> None:
    """Teach Keras the older words, once."""
    model: Any = keras.Model
    model.compile = _without(model.compile, "experimental_run_tf_function")
    model.fit_generator = _of_generator(_without(model.fit, *_OF_GENERATORS), *_FIT_GENERATOR)
    evaluate = _without(model.evaluate, *_OF_GENERATORS)
    model.evaluate_generator = _of_generator(evaluate, *_EVALUATE_GENERATOR, verbose=0)
    base: Any = next(c for c in keras.optimizers.Optimizer.__mro__ if c.__name__ == "BaseOptimizer")
    base.__init__ = _with_lr(base.__init__)
    base.lr = property(lambda self: self.learning_rate, lambda self, rate: setattr(self, "learning_rate", rate))
    variables = base.variables.fget
    base.variables = property(lambda self: _Called(variables(self)))
    backend: Any = keras.backend
    if not hasattr(backend, "set_session"):
        backend.set_session = lambda session: None
    backend.set_value = _set_value
    _put_back(keras.optimizers.legacy)
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    tensorflow.keras.backend.set_value = _set_value
    _put_back(tensorflow.keras.optimizers.legacy)
    image: Any = keras.preprocessing.image
    image.ImageDataGenerator = tensorflow.keras.preprocessing.image.ImageDataGenerator


def understand_sessions() -> None:
    """Teach TensorFlow the two words that Keras's scripts hand to ``set_session``."""
    tensorflow: Any = sys.modules.get("tensorflow")
    for name in ("ConfigProto", "Session") if tensorflow is not None else ():
        if not hasattr(tensorflow, name):
            setattr(tensorflow, name, getattr(tensorflow.compat.v1, name))


def _set_value(variable: Any, value: Any) -> None:
    variable.assign(value)


def _put_back(legacy: Any) -> None:
    """Let a module of optimizers that all refuse to be made have those of today; Keras 2's are left alone."""
    for name in ("Adagrad", "Adam", "Ftrl", "RMSprop", "SGD"):
        if getattr(legacy, name).__name__ != name:
            setattr(legacy, name, getattr(keras.optimizers, name))


class _Called(list[Any]):
    """A list that was a method once."""

    def __call__(self) -> list[Any]:
        return self


def _without(function: Any, *dropped: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{name: value for name, value in kwargs.items() if name not in dropped})

    return call


def _of_generator(function: Any, *names: str, **usual: Any) -> Any:
    def call(self: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, generator, **{**usual, **dict(zip(names, args, strict=False)), **kwargs})

    return call


def _with_lr(init: Any) -> Any:
    @functools.wraps(init)
    def __init__(self: Any, learning_rate: Any, *args: Any, lr: Any = None, **kwargs: Any) -> None:
        init(self, learning_rate if lr is None else lr, *args, **kwargs)

    return __init__
