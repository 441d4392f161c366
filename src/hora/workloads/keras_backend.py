"""What a run in Keras has to know of the backend, before a layer is made and while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from torch import Tensor

import hora.keras as hvd
from hora.config import env
from hora.errors import EnvironmentUnfit, UsageError
from hora.keras.adapter import Array
from hora.workloads import devices
from hora.workloads.options import WorkloadOptions

__all__ = ["TorchStream", "arrays", "compression", "on_torch", "prepare", "threads_wanted"]


def prepare(options: WorkloadOptions) -> None:
    """Make Keras ready for a run: this worker's GPU and threads, precision, and the seed of the initial weights. After
    ``init``, before the first layer is made; refuses what Keras cannot do.

    >>> hvd.init()
    >>> prepare(WorkloadOptions(precision="bf16"))
    >>> keras.config.dtype_policy().name
    'mixed_bfloat16'
    >>> prepare(WorkloadOptions())
    >>> keras.config.dtype_policy().name
    'float32'
    >>> hvd.shutdown()
    """
    backend = keras.config.backend()
    if backend not in _BACKENDS:
        raise EnvironmentUnfit(
            f"KERAS_BACKEND={backend}: Keras cannot train with it. Set it to one of {', '.join(_BACKENDS)}."
        )
    compression(options)
    _BACKENDS[backend](options)
    keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bf16" else "float32")
    keras.utils.set_random_seed(options.seed % 2**32)


def compression(options: WorkloadOptions) -> Any:
    """What ``DistributedOptimizer`` takes as ``compression``.

    >>> compression(WorkloadOptions()) is hvd.Compression.none
    True
    """
    name, backend = options.compression, keras.config.backend()
    if name in ("none", "fp16", "bf16"):
        return getattr(hvd.Compression, name)
    if backend != "torch":
        raise UsageError(
            f"--compression {name}: Keras on {backend} carries gradients as none, fp16 or bf16. Give one of those, or "
            "set KERAS_BACKEND=torch."
        )
    return getattr(hvd.Compression, name)()


def arrays(batch: tuple[Tensor, Tensor]) -> tuple[Array, Array]:
    """Images and labels as Keras takes them: arrays, the channels last.

    >>> import torch
    >>> [array.shape for array in arrays((torch.zeros(2, 3, 32, 32), torch.zeros(2)))]
    [(2, 32, 32, 3), (2,)]
    """
    images, labels = batch
    return np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy()), labels.numpy()


class TorchStream:
    """This worker's stream of random numbers on torch, where Keras's layers draw from the generators of the process
    unless they were given a seed. Others, such as data loaders, draw from them too: so it is there for a batch only.
    ``state`` has the CPU's generator, and the GPU's if there is one."""

    def __init__(self, seed: int) -> None:
        import torch

        places = {"cpu": torch, "cuda": torch.cuda} if torch.cuda.is_available() else {"cpu": torch}
        self._places: list[Any] = list(places.values())
        self.state: list[Array] = [torch.Generator(place).manual_seed(seed).get_state().numpy() for place in places]

    def begin(self) -> None:
        import torch

        for kind, state in zip(self._places, self.state, strict=False):
            kind.set_rng_state(torch.from_numpy(state))

    def end(self) -> None:
        self.state = [kind.get_rng_state().numpy() for kind in self._places]


def on_torch() -> bool:
    return bool(keras.config.backend() == "torch")


def threads_wanted() -> int:
    """Threads that this process was given by its launcher; 0 if it gave none."""
    said = env.environ().get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() else 0


def _tensorflow(options: WorkloadOptions) -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if options.device == "cuda" and not gpus:
        raise EnvironmentUnfit(
            f"--device cuda: TensorFlow {tf.__version__} sees no GPU on this host, so there is nothing to compute on. "
            "Run where there is one, or give --device cpu."
        )
    if gpus and options.device == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif gpus:
        mine = gpus[hvd.local_rank() % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    threading = tf.config.threading
    wanted = {threading.set_intra_op_parallelism_threads: threads_wanted()}
    wanted[threading.set_inter_op_parallelism_threads] = options.inter_threads
    for put, number in wanted.items():
        if number:
            try:
                put(number)
            except RuntimeError:  # something has been computed already, with as many as it took
                return


def _torch(options: WorkloadOptions) -> None:
    import torch

    devices.check(options.device)
    if torch.cuda.is_available() and options.device != "cpu":
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    if options.inter_threads and torch.get_num_interop_threads() != options.inter_threads:
        torch.set_num_interop_threads(options.inter_threads)


def _jax(options: WorkloadOptions) -> None:
    import jax

    devices = jax.local_devices()
    jax.config.update("jax_default_device", devices[hvd.local_rank() % len(devices)])


_BACKENDS: dict[str, Callable[[WorkloadOptions], None]] = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}
