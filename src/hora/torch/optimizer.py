"""``DistributedOptimizer``: any torch optimizer, stepping on gradients that were reduced over the ranks.

What is returned is an optimizer of a class with the same name, derived from the wrapped one's class. It shares the
wrapped one's parameter groups, state and hooks, so that nothing is lost and either may be saved, loaded or scheduled;
its ``state_dict`` is a plain one. All communication is the reducer's (``torch.reducer``); here is only when it happens.

With gradient clipping::

    loss.backward()
    optimizer.synchronize()                       # gradients are reduced from here on
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()

With a GradScaler, nothing has to be done: it gets reduced gradients to look at, so that all ranks find the same
overflow and leave out the same step. With both::

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)                    # reduces them first
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hora.engine import session
from hora.engine.explain import note_uneven
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import DeadlockError, ShutDownError, StallError, UnfinishedStepError, UsageError
from hora.ops.gradients import GradientRule
from hora.ops.numbering import name_of
from hora.torch import submit
from hora.torch.compat import is_gradscaler_asking
from hora.torch.compression import Compression
from hora.torch.reducer import Reducer
from hora.types import ReduceOp, Reduction

__all__ = ["DistributedOptimizer"]

Named = Iterable[tuple[str, torch.Tensor]]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The optimizer, with gradients that are reduced over the ranks while ``backward`` runs.

    Each gradient is sent as soon as it is computed; ``step()`` waits for all of them. A rank that has no gradient for a
    parameter contributes zeros to those that have one.

    Args:
        optimizer: Any torch optimizer. The result is of a class of the same name, and shares its parameter groups,
            state and hooks.
        named_parameters: ``model.named_parameters()``: unique names that cover the optimizer's parameters, by which
            gradients are paired and reported. Without it they are numbered, in the same order on all ranks.
        compression: ``Compression.none``, ``fp16``, ``bf16`` or one with a memory, such as ``Compression.power_sgd()``.
        backward_passes_per_step: How many backward passes accumulate gradients locally, which are summed, before they
            are reduced.
        op: Average, Sum or Adasum (which combines steps, not gradients).
        gradient_predivide_factor: f divides by f before and by size/f after the summation; op=Average only.
        num_groups: Horovod's old name for an integer ``groups``.
        groups: Parameters to be reduced together: a number of groups, or lists of parameters.
        sparse_as_dense: Reduce sparse gradients as dense ones: faster where most rows are touched.
        process_set: The ranks that take part; all of them unless given. The others' optimizers step by themselves.

    >>> import hora.torch as hvd
    >>> hvd.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    >>> model(torch.ones(4, 2)).sum().backward()
    >>> optimizer.step()
    >>> type(optimizer).__name__, isinstance(optimizer, torch.optim.SGD)
    ('SGD', True)
    >>> hvd.shutdown()
    """
    if isinstance(optimizer, _Distributed):
        raise UsageError(
            "DistributedOptimizer of a DistributedOptimizer. Gradients would be reduced twice. Give it the plain"
            " optimizer."
        )
    _check_passes(backward_passes_per_step)
    op = ReduceOp(op)
    rule = GradientRule(
        op, float(gradient_predivide_factor), compression=compression, sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )  # fmt: skip
    rule.check(ReduceOp.ADASUM, advice="Use op=Average, Sum or Adasum.")
    names = _names(optimizer, named_parameters)
    if op is ReduceOp.ADASUM:
        from hora.torch.adasum import DistributedAdasumOptimizer

        return DistributedAdasumOptimizer(optimizer, None, compression, backward_passes_per_step, process_set)
    together = _groups(optimizer, num_groups if groups is None else groups)
    members = process_set.members
    reducer = None
    if session.engine().rank in members and (len(members) > 1 or session.is_elastic()):  # others may yet come
        reducer = Reducer(_labelled(optimizer, names), rule, together, backward_passes_per_step)
    base = optimizer.__class__
    cls: Any = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    made: _Distributed = cls.__new__(cls)
    made._take_over(optimizer, reducer, names, process_set, backward_passes_per_step)
    return made


class _Distributed(torch.optim.Optimizer):
    """What is put before the wrapped optimizer's class. Without a reducer it passes everything through."""

    _wrapped: torch.optim.Optimizer | None
    _reducer: Reducer | None
    _known_names: dict[int, str]
    _process_set: ProcessSet
    _should_synchronize: bool
    _synchronized: bool  # the gradients are reduced, and the user knows
    _scaler_saw: bool  # they are reduced, because a GradScaler looked at them
    _leave_out = False  # they are not finite, and the next step is to be left out
    backward_passes_per_step: int

    def _take_over(
        self,
        optimizer: torch.optim.Optimizer,
        reducer: Reducer | None,
        names: dict[int, str],
        process_set: ProcessSet,
        passes: int,
    ) -> None:
        # A scheduler made for the wrapped optimizer has put its own step there; ours must be found instead.
        self.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
        self._wrapped, self._reducer, self._known_names, self._process_set = optimizer, reducer, names, process_set
        self._should_synchronize, self._synchronized, self._scaler_saw = True, False, False
        self.backward_passes_per_step = passes
        if reducer is not None:
            weakref.finalize(self, reducer.close).atexit = False
        either = weakref.ref(optimizer), weakref.ref(self)

        def loaded(source: torch.optim.Optimizer) -> None:
            """Loading gives an optimizer new groups and a new state: the other one gets them too."""
            for other in (known() for known in either):
                if other is not None:
                    other.__dict__["state"] = source.__dict__["state"]
                    other.__dict__["param_groups"] = source.__dict__["param_groups"]

        self.register_load_state_dict_post_hook(loaded)  # the hooks are shared, so it is the wrapped one's as well

    # ---- Horovod's methods ----

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; then they may be looked at and changed, until ``step()``."""
        self._finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step()`` takes the gradients as they are: after ``synchronize()``."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes accumulate gradients locally before they are reduced."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def rest(self, resting: bool) -> None:
        """Step on this rank's own gradients, as without Hora, until told otherwise; all ranks do so between the same
        steps. For measuring what communication costs: the ranks' parameters drift apart meanwhile."""
        if self._reducer is not None:
            self._reducer.rest(resting)

    def abandon(self) -> None:
        """The workers are about to change: forget gradients that are under way, and give their memory back."""
        if self._reducer is not None:
            self._reducer.abandon()
        self._synchronized = self._scaler_saw = self._leave_out = False

    # ---- torch's methods ----

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        reducer = self._reducer
        if reducer is not None and self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after"
                    " optimizer.synchronize(). The gradients are taken as they are now; call step() in that context to"
                    " say that this is meant.",
                    stacklevel=2,
                )
            if closure is not None:
                closure = self._reducing(closure)
                if reducer.touched:
                    self._finish()
            elif reducer.touched or not (self._synchronized or self._scaler_saw):
                self._finish()
        self._synchronized = self._scaler_saw = False
        if self._wrapped is not None:
            self._wrapped._opt_called = True  # type: ignore[attr-defined]  # what a scheduler of the wrapped one looks at
        if self._leave_out:
            self._leave_out = False
            return None
        loss = super().step(*args, **kwargs) if closure is None else super().step(closure, *args, **kwargs)
        if reducer is not None:
            reducer.after_step()
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # torch's step hooks run around the wrapped class's step

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        reducer = self._reducer
        if reducer is not None:
            if reducer.touched:
                self._drop(reducer)
            reducer.restart()
            self._synchronized = self._scaler_saw = self._leave_out = False
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._enrol()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._reducer is not None and self._reducer.touched:
            self._reducer.finish(keep=False)
        self._synchronized = self._scaler_saw = False
        super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_wrapped" not in self.__dict__:  # a copy: it has its own parameters, which nobody else reduces
            self._wrapped = self._reducer = None
            self._known_names, self._process_set = {}, global_process_set
            self._should_synchronize, self._synchronized, self._scaler_saw = True, False, False
            self.backward_passes_per_step = 1
        super().__setstate__(state)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups. A GradScaler that comes for them wants to look at reduced gradients."""
        if self._reducer is not None and is_gradscaler_asking():
            self._show_scaler()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    # ---- inside ----

    def _show_scaler(self) -> None:
        assert self._reducer is not None
        if self._should_synchronize and (self._reducer.touched or not (self._synchronized or self._scaler_saw)):
            self._finish(watched=True)
            self._scaler_saw = True

    def _finish(self, watched: bool = False) -> None:
        if self._reducer is not None:
            self._enrol()
            try:
                self._leave_out = not self._reducer.finish(watched=watched)
            except (ShutDownError, DeadlockError, StallError) as error:
                note_uneven(error, self._reducer.steps)
                raise

    def _enrol(self) -> None:
        """Hand parameters to the reducer that were added since, here or to the wrapped optimizer."""
        reducer = self._reducer
        if reducer is None or sum(len(group["params"]) for group in self.param_groups) == len(reducer):
            return
        reducer.add(pair for pair in _labelled(self, self._known_names) if pair[1] not in reducer)

    def _drop(self, reducer: Reducer) -> None:
        """The user throws gradients away that are on their way."""
        if not (self._synchronized or reducer.overtaken):
            raise UnfinishedStepError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or"
                " optimizer.synchronize(). The gradients are being reduced, and the other ranks wait for them. Call"
                " step() first; or synchronize(), on all ranks, if they are to be thrown away."
            )
        reducer.finish(keep=False)

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed by the reduction of the gradients it computed."""

        def reducing() -> Any:
            loss = closure()
            self._finish()
            self._leave_out = False  # too late for that: the step has begun
            if isinstance(self, torch.optim.LBFGS):  # it decides by the loss, and all ranks must decide alike
                with torch.no_grad():
                    own = torch.as_tensor(loss).detach().clone().reshape(1)
                    name = f"{name_of(self._reducer, 'gradients', self._process_set)}.loss"
                    submit.allreduce_in_place(own, Reduction(ReduceOp.AVERAGE), name, self._process_set).wait()
                    loss = own[0]
            return loss

        return reducing


def _check_passes(passes: int) -> None:
    if not isinstance(passes, int) or passes < 1:
        raise UsageError(
            f"backward_passes_per_step={passes!r}: must be > 0. A step needs at least one backward pass. Give a whole"
            " number from 1."
        )


def _names(optimizer: torch.optim.Optimizer, named_parameters: Named | None) -> dict[int, str]:
    """The names of parameters by their identity; the optimizer's own, if it has some and none are given."""
    if named_parameters is None:
        return {
            id(parameter): name
            for group in optimizer.param_groups
            for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
        }
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise UsageError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by"
            " model.named_parameters()."
        )
    labels = [name for name, _ in named]
    if len(set(labels)) < len(labels):
        twice = ", ".join(sorted({name for name in labels if labels.count(name) > 1}))
        raise UsageError(
            f"Parameter names in named_parameters must be unique. Found duplicates: {twice}. Ranks pair gradients by"
            " them. Give each parameter its own, as model.named_parameters() does."
        )
    names = {id(parameter): name for name, parameter in named}
    missing = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if id(parameter) not in names
    ]
    if missing:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in missing[:5])
        raise UsageError(
            "named_parameters was specified, but one or more model parameters were not named:"
            f" {len(missing)} of the optimizer's are missing (shapes {shapes}). Give all of them, as"
            " model.named_parameters() does, or none."
        )
    return names


def _labelled(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, parameter) of every parameter; those without a name are numbered."""
    seen = set()
    for i, group in enumerate(optimizer.param_groups):
        own = group.get("param_names", ())
        for j, parameter in enumerate(group["params"]):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield names.get(id(parameter)) or (own[j] if j < len(own) else f"noname.{i}.{j}"), parameter


def _groups(
    optimizer: torch.optim.Optimizer, groups: int | Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """The parameters to be reduced together."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if isinstance(groups, int):
        if groups < 0:
            raise UsageError(f"groups={groups}: a number of groups must be 0 or more. 0 leaves it to Hora.")
        count = min(groups, len(parameters))
        ends = [round(len(parameters) * i / count) for i in range(count + 1)] if count else []
        return [parameters[a:b] for a, b in itertools.pairwise(ends)]
    known = {id(parameter) for parameter in parameters}
    chosen = [list(group) for group in groups] if isinstance(groups, Sequence) else None
    if chosen is None or any(not isinstance(p, torch.Tensor) for group in chosen for p in group):
        raise UsageError(
            f"groups={groups!r}: groups should be a non-negative integer or a list of list of torch.Tensor: a number of"
            " groups, or the parameters of each."
        )
    flat = [id(parameter) for group in chosen for parameter in group]
    if len(set(flat)) < len(flat):
        raise UsageError("groups: a parameter is in two groups. It can only be reduced with one. Name it once.")
    return [[parameter for parameter in group if id(parameter) in known] for group in chosen]
