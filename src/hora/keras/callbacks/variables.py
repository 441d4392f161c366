"""All workers begin with the same model."""

from __future__ import annotations

from typing import Any

import keras

from hora.engine.process_set import ProcessSet, global_process_set
from hora.keras.functions import broadcast_model

__all__ = ["BroadcastGlobalVariablesCallback"]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the root's model and optimizer state before the first batch, whether new or loaded from a file.

    Horovod's does so after the first batch, whose gradients are then an average over models that differ. Here that
    happens only on TensorFlow, to a model that has no variables before and whose optimizer is a plain one, or of whose
    data the shapes are not known.

    Args:
        root_rank: The rank to copy from.
        device: Taken for Horovod's sake.
        local_variables: Variables that every rank keeps.
        process_set: The ranks that take part; all of them unless given.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.root_rank, self.process_set = root_rank, process_set
        self.local_variables = list(local_variables or ())
        self.broadcast_done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.broadcast_done:
            return
        if self.model.built:
            self._broadcast()
        else:
            self.on_train_batch_end = self._after_first_batch

    def _after_first_batch(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_model(self.model, self.root_rank, self.process_set, self.local_variables)
        self.broadcast_done = True

    def register_local_var(self, var: Any) -> None:
        """Let every rank keep its own value of this variable."""
        self.local_variables.append(var)
