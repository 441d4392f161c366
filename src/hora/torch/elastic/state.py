"""The state of a training with PyTorch: models, optimizers, samplers and plain values.

A commit costs next to nothing where there is one after every step: parameters and the optimizer's moments change only
in ``step()``, so until then they *are* what was committed, and no copy is needed. After a loss every survivor is at its
last commit, or one step behind others, who then send it theirs. Copies are made where commits are rarer, and until it
has been seen how often they come.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch

from hora.elastic.state import Handler, ObjectState
from hora.engine import session
from hora.engine.process_set import ProcessSet
from hora.ops.call import Call
from hora.torch import submit
from hora.torch.adapter import as_bits
from hora.torch.elastic.sampler import ElasticSampler
from hora.types import Kind

__all__ = ["ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler", "TorchState"]

_REGULAR = 3  # so many commits in a row with one step between them, and nothing else, are taken for a habit


class StateHandler(Handler):
    """What takes care of a part of a training with PyTorch."""

    def part(self, unchanged: set[int]) -> Any:
        """A copy of what may change without a step of an optimizer; ``unchanged`` are addresses of what does not."""
        raise NotImplementedError

    def complete(self, part: Any) -> None:
        """Keep a copy of all there is, but with that part."""
        raise NotImplementedError


class ModelStateHandler(StateHandler):
    """A module: its parameters and buffers."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)

    def capture(self) -> Any:
        return self.value.state_dict()

    def load(self, captured: Any) -> None:
        self.value.load_state_dict(captured)

    def part(self, unchanged: set[int]) -> _Part:
        """A copy of all but these tensors (by their memory), which only a step changes."""
        return _Part(
            copy.deepcopy(
                {
                    name: value
                    for name, value in self.value.state_dict().items()
                    if not (isinstance(value, torch.Tensor) and value.data_ptr() in unchanged)
                }
            )
        )

    def complete(self, part: _Part) -> None:
        """Keep a copy of all, but of what is in the part keep that."""
        self._saved = copy.deepcopy(self.capture()) | part.values

    def restore(self) -> None:
        if isinstance(self._saved, _Part):
            self.value.load_state_dict(copy.deepcopy(self._saved.values), strict=False)
        else:
            super().restore()


class OptimizerStateHandler(StateHandler):
    """An optimizer: its moments and its options."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)

    def capture(self) -> Any:
        return self.value.state_dict()

    def load(self, captured: Any) -> None:
        self.value.load_state_dict(captured)

    def part(self, unchanged: set[int]) -> _Part:
        """A copy of the options; the moments are only changed by a step."""
        return _Part([_options(group) for group in self.value.param_groups])

    def complete(self, part: _Part) -> None:
        """Keep a copy of all, but of what is in the part keep that."""
        self._saved = copy.deepcopy(self.capture())
        for group, options in zip(self._saved["param_groups"], part.values, strict=True):
            group.update(options)

    def restore(self) -> None:
        if isinstance(self._saved, _Part):
            for group, options in zip(self.value.param_groups, copy.deepcopy(self._saved.values), strict=True):
                group.update(options)
        else:
            super().restore()


class SamplerStateHandler(StateHandler):
    """A sampler that knows what is left of an epoch."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler)

    def capture(self) -> Any:
        return self.value.state_dict()

    def load(self, captured: Any) -> None:
        self.value.load_state_dict(captured)

    def part(self, unchanged: set[int]) -> Any:
        """All of it, for there is little."""
        return copy.deepcopy(self.capture())

    def complete(self, part: Any) -> None:
        """Keep the part, which is all of it."""
        self._saved = part


class _Part:
    """What was copied of something of which the rest did not have to be."""

    def __init__(self, values: Any) -> None:
        self.values = values


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({key: value for key, value in group.items() if key not in ("params", "param_names")})


class TorchState(ObjectState):
    """A training's model, optimizer and whatever else it needs to go on.

    Args:
        model: A module.
        optimizer: Its optimizer; better the one that ``DistributedOptimizer`` returned.
        kwargs: Attributes: more modules, optimizers, ``ElasticSampler``s, and plain values such as ``epoch=0``.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        given: dict[str, Any] = {"model": model, "optimizer": optimizer}
        self._watched: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._steps: dict[int, int] = {}  # of each optimizer since the last commit, by its identity
        self._regular = 0  # commits in a row that came right after one step of every optimizer
        self._irregular = False  # that habit was broken once: commits copy everything from then on
        self._live = False  # the last commit is what the memory holds
        self._submitted = -1  # how many operations there were when the last step ended
        self._after_step: tuple[dict[str, Any], dict[str, Any]] = {}, {}  # values, and parts, at the end of that
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **kwargs)
        for name, value in given.items():
            if value is None:
                object.__setattr__(self, name, None)
        self._watch()

    _handlers: dict[str, StateHandler]  # type: ignore[assignment]

    def _handler_for(self, value: Any) -> StateHandler | None:
        if isinstance(value, torch.nn.Module):
            return ModelStateHandler(value)
        if isinstance(value, torch.optim.Optimizer):
            return OptimizerStateHandler(value)
        if isinstance(value, ElasticSampler):
            return SamplerStateHandler(value)
        return None

    def _apart(self) -> _TensorsOutOfBand:
        return _TensorsOutOfBand()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()

    def leave(self) -> None:
        """The workers are about to change: give back memory that they share."""
        for optimizer in self._optimizers():
            if (abandon := getattr(optimizer, "abandon", None)) is not None:
                abandon()

    # ---- keeping, without a copy where none is needed ----

    def commit(self) -> None:
        steps = [self._steps.get(id(optimizer), 0) for optimizer in self._optimizers()]
        alone = session.engine().submitted == self._submitted  # else a loss may show between step and commit
        self._regular = self._regular + 1 if steps and set(steps) == {1} and alone else 0
        self._rare = any(step > 1 for step in steps)
        super().commit()

    _rare = False

    def _asks_now(self) -> bool:
        return self._rare  # the next commit, at which the answer would be heard, may be far away

    def _keep(self) -> None:
        self._steps.clear()
        self._watch()
        lean = self._regular >= _REGULAR and not self._irregular
        if not lean:
            self._live = False
            super()._keep()
            return
        self._kept, parts = self._small()
        for name, part in parts.items():
            self._handlers[name]._saved = part
        self._live = True

    def _small(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of all that may change without a step: plain values, and parts of what the handlers have."""
        unchanged = {p.data_ptr() for o in self._optimizers() for group in o.param_groups for p in group["params"]}
        self._keep_values()
        return self._kept or {}, {name: handler.part(unchanged) for name, handler in self._handlers.items()}

    def restore(self) -> None:
        """Go back to the last commit; gradients are thrown away."""
        self.leave()
        if self._live and any(self._steps.values()):
            # A step was finished since, and cannot be taken back; whoever did not get to it will help.
            self._kept, parts = self._after_step
            for name, part in parts.items():
                self._handlers[name]._saved = part
            self._beyond = True
        super().restore()
        self._steps.clear()

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [h.value for h in self._handlers.values() if isinstance(h, OptimizerStateHandler)]

    def _watch(self) -> None:
        """Count the steps of our optimizers, and be told before one that was not expected."""
        mine = weakref.ref(self)
        for optimizer in self._optimizers():
            if optimizer in self._watched:
                continue
            self._watched.add(optimizer)
            if isinstance(optimizer, torch.optim.LBFGS):
                self._irregular = True  # it changes parameters in the middle of its communication

            def before(optimizer: Any, *rest: Any) -> None:
                if (state := mine()) is not None:
                    state._before_step(optimizer)

            def after(optimizer: Any, *rest: Any) -> None:
                if (state := mine()) is not None:
                    state._after(optimizer)

            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._live and self._steps.get(id(optimizer), 0):
            # There was a commit after every step, and now there is none: from here on it takes copies. The first is of
            # what the last step left, for of what it began with there is none.
            self._irregular, self._live = True, False
            self._kept, parts = self._after_step
            for name, part in parts.items():
                self._handlers[name].complete(part)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if session.current is not None:
            self._submitted = session.current.submitted
        if self._live:
            kept = self._kept
            self._after_step = self._small()
            self._kept = kept


class _TensorsOutOfBand:
    """Keeps tensors out of pickled bytes: see ``elastic.tree.OutOfBand``."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, value: object) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return None
        place = self._places.setdefault(id(value), len(self._tensors))
        if place == len(self._tensors):
            self._tensors.append(value)
        return place, tuple(value.shape), value.dtype

    def persistent_load(self, recipe: Any) -> Any:
        place, shape, dtype = recipe
        if place == len(self._tensors):
            self._tensors.append(
                torch.empty(shape, dtype=dtype, device="cpu")
            )  # load_state_dict brings it to its device
        return self._tensors[place]

    def move(self, root: int, process_set: ProcessSet) -> None:
        with torch.no_grad():
            flat = [as_bits(tensor.detach()) for tensor in self._tensors]
            calls = [Call(Kind.BROADCAST, f"elastic.tensor.{i}", process_set, root=root) for i in range(len(flat))]
            started = [submit.start(call, [bits], True) for call, bits in zip(calls, flat, strict=True)]
            for under_way in started:
                under_way.wait()
