"""What Hora changes in Keras, or reaches into it for: each with why. All of it is about Keras 3.

Besides, distributed optimizers override three methods of Keras's that are not public: ``_clip_gradients`` and
``_backend_apply_gradients``, the only places that all gradients of an update pass before they are used, and
``LossScaleOptimizer.stateless_apply`` (``optimizer``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

__all__ = ["restore_state", "share_name", "teach_keras"]


def share_name(base: type, cls: type) -> None:
    """Let Keras write the same name for the class into a file as for the one that it is derived from.

    Why: what many workers save is to be loaded by plain Keras. It looks classes up in two tables that are not public.
    """
    from keras.src import api_export
    from keras.src.saving import object_registration

    for ancestor in base.__mro__:  # on torch, keras.optimizers.SGD makes an object of a class derived from it
        public = api_export.REGISTERED_OBJS_TO_NAMES.get(ancestor)
        if public is not None and ancestor.__name__ == base.__name__:
            api_export.REGISTERED_OBJS_TO_NAMES[cls] = public
            return
    registered = object_registration.GLOBAL_CUSTOM_NAMES.get(base)
    if registered is not None:
        object_registration.GLOBAL_CUSTOM_NAMES[cls] = registered


@functools.cache
def teach_keras(distributed: type, take_over: Callable[[Any, Any], None]) -> None:
    """Let Keras do the right thing with a distributed optimizer in the places where it does not ask it, once.

    Why: ``model.compile`` makes a ``LossScaleOptimizer`` for the optimizer of a float16 model. That looks for overflow
    before it hands gradients on; if they were reduced only then, a rank with an overflow would leave out a step that
    the others wait in. So whoever scales the loss takes the reducing over: ``take_over(scaling, inner)``.
    """
    scaling: Any = keras.optimizers.LossScaleOptimizer
    init = scaling.__init__

    @functools.wraps(init)
    def __init__(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(self, inner_optimizer, *args, **kwargs)
        if isinstance(inner_optimizer, distributed) and not isinstance(self, distributed):
            take_over(self, inner_optimizer)

    scaling.__init__ = __init__
    if keras.config.backend() == "tensorflow":
        _teach_keras_on_tensorflow(keras.Model, distributed)


def _teach_keras_on_tensorflow(model: Any, distributed: type) -> None:
    """Why: two things are different there.

    Where there is a GPU, Keras has XLA compile the step unless told not to, from which no gradient gets out to be
    reduced. And it leaves it to the first step to make variables, as it does not elsewhere: too late to broadcast them.
    """

    def is_distributed(self: Any) -> bool:
        return isinstance(getattr(self, "optimizer", None), distributed)

    resolve, build = model._resolve_auto_jit_compile, model._maybe_symbolic_build

    @functools.wraps(resolve)
    def _resolve_auto_jit_compile(self: Any) -> Any:
        return False if is_distributed(self) else resolve(self)

    @functools.wraps(build)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        build(self, iterator=iterator, data_batch=data_batch)
        if is_distributed(self) and not self.built:
            data = getattr(iterator, "_distributed_dataset", None)  # of which no batch is taken: it may have no other
            like = data_batch if data is None else data.element_spec
            with contextlib.suppress(ValueError, RuntimeError, TypeError):  # then the first step makes them after all
                self._symbolic_build(data_batch=like)

    model._resolve_auto_jit_compile, model._maybe_symbolic_build = _resolve_auto_jit_compile, _maybe_symbolic_build


def restore_state(model: Any, filepath: Any) -> None:
    """Give a model that was loaded from an h5 file its optimizer's state.

    Why: there Keras 3 makes the optimizer's variables for those of the model itself, not for its layers'.
    """
    optimizer = model.optimizer
    if not str(filepath).endswith((".h5", ".hdf5")) or not optimizer.built:
        return
    if len(optimizer._trainable_variables) == len(model.trainable_variables):
        return
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    fresh = type(optimizer).from_config(optimizer.get_config())
    fresh.build(model.trainable_variables)
    with h5py.File(filepath, "r") as file:
        values = [np.asarray(value) for value in load_optimizer_weights_from_hdf5_group(file)]
    for variable, value in zip(fresh.variables, values, strict=True):
        variable.assign(value)
    model.optimizer = fresh
