"""The reducer: from gradients that autograd has just computed to reduced ones in ``param.grad``.

It owns the hooks on the parameters. In the first step every gradient is reduced by itself, by name
(``torch.unbucketed``); then the parameters are put into buckets in the order in which they became ready on the first
rank (``torch.travel``, ``torch.bucket``). From then on a hook copies the fresh gradient into its bucket while it is in
the cache, sets ``param.grad`` to its place there, and the hook that completes a bucket submits it. ``finish`` submits
what is missing and waits for all.

Promises: ranks may differ in which parameters get a gradient and in which order. A rank without one contributes zeros
to those that have one; where no rank has one, ``param.grad`` is left as it is. All ranks submit the same operations, in
whatever order; what they change (new buckets) they change together, by what a reduction told all of them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from hora.engine import session
from hora.engine.backend import OperationOutcome, UnderWay
from hora.engine.core import Engine
from hora.engine.explain import note_uneven
from hora.errors import ShutDownError, UnfinishedStepError, UsageError
from hora.ops.gradients import GradientRule
from hora.ops.numbering import name_of
from hora.torch import guard, hooks, summary, travel, unbucketed
from hora.torch.bucket import FIGURES, REPLICAS, Bucket, GradientEntry
from hora.torch.guard import StepDecision
from hora.torch.hooks import Hook
from hora.torch.unbucketed import DENSE, GradientPresence, PresenceCheck

__all__ = ["Reducer"]

_finished_steps = 0  # of any reducer of this process
_owners: dict[int, weakref.ref[Reducer]] = {}  # by the identity of a parameter, which its reducer keeps alive


@dataclass(slots=True)
class _Step:
    """What belongs to one step, and ends with it. Moments are told by ``_finished_steps``."""

    sent_first: int  # when its first gradient was sent
    computed_first: int | None = None  # when the first of its several passes brought one
    buckets: list[tuple[Bucket, UnderWay[OperationOutcome]]] = field(default_factory=list)  # under way
    alone: list[GradientEntry] = field(default_factory=list)  # what travels each by itself, as sent

    @property
    def is_empty(self) -> bool:
        return not self.buckets and not self.alone


class Reducer:
    """Reduces the gradients of some named parameters over a process set.

    Args:
        named_parameters: (name, parameter) pairs; names are what ranks pair gradients by.
        rule: What is done with gradients; this must be one of the ranks of its process set.
        groups: Parameters that are to be reduced together.
        passes: After how many backward passes a gradient is due.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        rule: GradientRule,
        groups: Sequence[Sequence[torch.Tensor]] = (),
        passes: int = 1,
    ) -> None:
        self._rule = rule
        self._group_of = {id(parameter): i for i, group in enumerate(groups) for parameter in group}
        self._passes = passes
        self._entries: list[GradientEntry] = []
        self._dormant: list[GradientEntry] = []  # parameters that do not require a gradient, so far
        self._unbucketed: list[GradientEntry] = []
        self._buckets: list[Bucket] = []
        self._step = _Step(0)
        self._abandoned: list[object] = []
        self._presence: PresenceCheck | None = None
        self.steps = 0  # that were taken
        self._ask_next = self._asked_last = 0  # what the first rank is to ask for with a step, or has asked for
        self._builds = itertools.count()
        self.closed = self.resting = False
        self._attach()
        self._ask_next = REPLICAS if self._is_first and self._guard is not None and self._guard.every else 0
        self.add(named_parameters)

    # ---- parameters ----

    def add(self, named_parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take care of more parameters. All ranks must, before the same step."""
        for label, parameter in named_parameters:
            before = _owners.get(id(parameter))
            if before is not None and (other := before()) is not None and other is not self:
                other.close()  # a new optimizer for the same parameters takes over from the old one
            _owners[id(parameter)] = weakref.ref(self)
            entry = GradientEntry(parameter, label, self._group_of.get(id(parameter)), self._passes)
            entry.name = f"{self._namespace}.{label}"
            self._entries.append(entry)
            self._dormant.append(entry)
        self._wake()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        owner = _owners.get(id(parameter))
        return owner is not None and owner() is self

    def _wake(self) -> None:
        """Hook those that require a gradient by now."""
        for entry in [e for e in self._dormant if e.parameter.requires_grad or e.parameter.grad is not None]:
            self._dormant.remove(entry)
            entry.settled = travel.never_bucketed(entry.parameter, self._rule)
            self._unbucketed.append(entry)
            self._presence = None
            self._hook(entry)
            if not entry.settled and travel.as_it_is(entry, self._rule):
                unbucketed.allocate_gradient_in_shared_memory(entry.parameter, session.engine())

    def _hook(self, entry: GradientEntry) -> None:
        """Register what fits the way it travels."""
        if entry.hook is not None:
            entry.hook.remove()
        fire = self._hook_for(entry)
        entry.fire = fire = fire if self._passes == 1 else self._counting(fire)
        entry.hook = entry.parameter.register_post_accumulate_grad_hook(fire) if entry.parameter.requires_grad else None

    def set_passes(self, passes: int) -> None:
        """After how many backward passes a gradient is due, from the next step on."""
        self._passes = passes
        for entry in self._entries:
            if entry.left > 0:
                entry.left = passes
            if entry.hook is not None:
                self._hook(entry)

    def rest(self, resting: bool) -> None:
        """Leave gradients as they are and send nothing, until told otherwise; all ranks do so between the same steps.
        For measuring what communication costs."""
        self.resting = resting
        for entry in [entry for entry in self._entries if entry.hook is not None]:
            entry.hook.remove() if resting else self._hook(entry)

    def close(self) -> None:
        """Remove all hooks."""
        self.closed = True
        for entry in self._entries:
            if entry.hook is not None:
                entry.hook.remove()
            if (owner := _owners.get(id(entry.parameter))) is not None and owner() in (self, None):
                del _owners[id(entry.parameter)]

    def _attach(self) -> None:
        """Begin, or begin again in a new generation: what the old one had under way is gone."""
        self._engine: Engine | None = session.engine()
        self._most_bytes = self._engine.settings.bucket_bytes
        self._namespace = name_of(self, "gradients", self._rule.process_set)
        self._help = self._engine.backend.help
        self._guard = guard.from_settings(self._rule.process_set)
        self._summary = summary.from_settings(self._rule.process_set)
        self._core_looks = self._engine.backend.finds_not_finite
        self._is_first = self._rule.process_set.members[0] == self._engine.rank
        self._forget()
        for entry in self._entries:
            entry.name = f"{self._namespace}.{entry.label}"

    def _forget(self) -> None:
        """What a generation that is over had agreed on, and had under way."""
        self._presence = None
        for bucket in self._buckets:
            self._dissolve(bucket)
        self._buckets.clear()
        self._builds = itertools.count()
        dormant = {id(entry) for entry in self._dormant}
        self._unbucketed = [entry for entry in self._entries if id(entry) not in dormant]  # in everybody's order again
        for entry in self._entries:
            entry.start = None
            entry.settled = travel.never_bucketed(entry.parameter, self._rule)
        self._reset()

    def abandon(self) -> None:
        """The generation is over: forget what was under way, and give back the memory that its gradients are in. The
        next gradient begins anew, in whatever generation there is then."""
        self._engine = None
        self._forget()
        for entry in self._entries:
            entry.parameter.grad = None

    # ---- hooks ----

    def _hook_for(self, entry: GradientEntry) -> Hook:
        bucket = entry.bucket
        if bucket is None:
            return hooks.unbucketed(entry, self._send_from_hook, self._again)
        kind = hooks.into_cast if entry.view is None else hooks.into_view
        return kind(entry, bucket, self._submit, self._again)

    def _counting(self, fire: Hook) -> Hook:
        """A hook that counts passes afresh after another optimizer's step: those before it were meant for that one.

        What they accumulated is not touched: if it was meant for this one after all, ``finish`` sends it.
        """

        def counting(parameter: torch.Tensor) -> None:
            first = self._step.computed_first
            if first is not None and first < _finished_steps and not self.touched:
                self._reset()
            if self._step.computed_first is None:
                self._step.computed_first = _finished_steps
            fire(parameter)

        return counting

    def _again(self, entry: GradientEntry, parameter: torch.Tensor) -> None:
        """A gradient came again before the last one was taken: right only if that was thrown away meanwhile."""
        if parameter.grad is entry.view or parameter.grad is entry.kept:
            raise UnfinishedStepError(
                f"the gradient of {entry.label} was computed {self._passes + 1} times before step(). After"
                f" {self._passes} it was sent to the other ranks, and what comes later would be lost. Increase"
                " backward_passes_per_step to accumulate gradients locally over more backward passes, or call"
                " step() or zero_grad() in between."
            )
        self.finish(keep=False)
        assert entry.fire is not None
        entry.fire(parameter)

    def _send_from_hook(self, entry: GradientEntry) -> None:
        if session.current is not self._engine:
            self._attach()
            return
        assert entry.parameter.grad is not None
        self._send(entry, entry.parameter.grad)
        self._help()

    def _send(self, entry: GradientEntry, grad: torch.Tensor) -> None:
        if self._step.is_empty:
            self._step.sent_first = _finished_steps
        guard = self._guard
        if guard is not None and not (self._core_looks and unbucketed.is_summed(grad, self._rule)):
            entry.marked = True
            if guard.looks_at(grad.numel() * grad.itemsize, len(self._step.alone)):
                values = grad.detach() if grad.layout is torch.strided else grad.detach()._values()
                guard.before_reduce(values, ((entry.label, values),))
        unbucketed.send(entry, grad, self._rule)
        self._step.alone.append(entry)

    def _submit(self, bucket: Bucket) -> None:
        try:
            self._submit_now(bucket)
        except ShutDownError as error:  # raised in backward: the optimizer does not see it
            note_uneven(error, self.steps)
            raise

    def _submit_now(self, bucket: Bucket) -> None:
        if session.current is not self._engine:
            self._attach()
            return
        if self._step.is_empty:
            self._step.sent_first = _finished_steps
        bucket.submitted = True
        bucket.open(self._ask_next if bucket is self._buckets[0] else 0)
        guard = self._guard
        if guard is not None and bucket.marked and guard.looks_at(bucket.nbytes, bucket.number):
            guard.before_reduce(bucket.flat, bucket.pieces(), bucket.mark)
        assert bucket.start is not None
        self._step.buckets.append((bucket, bucket.start(bucket.flat)))
        self._help()

    # ---- the end of a step ----

    @property
    def touched(self) -> bool:
        """Whether any gradient came since the last step."""
        return not self._step.is_empty or any(bucket.left != bucket.size for bucket in self._buckets)

    @property
    def overtaken(self) -> bool:
        """Whether another optimizer has finished a step since gradients came here: they were meant for that one."""
        return _finished_steps > self._step.sent_first

    def restart(self) -> None:
        """Gradients were thrown away before they were due: count the passes afresh."""
        if self._passes > 1 and not self.touched:
            self._reset()

    def finish(self, keep: bool = True, watched: bool = False) -> bool:
        """Submit what is missing, wait for all, and leave the reduced gradients in ``param.grad``.

        With ``keep`` False they are thrown away, here and on the other ranks, which must do the same.
        False if they are not finite and the step is to be left out (HORA_NONFINITE=skip). Nothing is said about that if
        the caller watches for it, as a GradScaler does, to which it is nothing special.
        """
        global _finished_steps
        if self.resting:
            return True
        self._get_ready()
        began = perf_counter()
        try:
            roll = self._submit_missing(keep)
            self._wait()
            received, marks = self._put_back(roll, keep)
        except BaseException:
            self._give_up()
            raise
        finally:
            _finished_steps += 1
            self._reset()
        if self._summary is not None and keep:
            sent_bytes = sum(bucket.sent_bytes for bucket in self._buckets)
            sent_bytes += sum(tensor.numel() * tensor.itemsize for tensor in received)
            self._summary.end_step(perf_counter() - began, sent_bytes, bool(self._asked_last & FIGURES))
        return self._is_fit(marks, keep, watched)

    # ---- its phases ----

    def _get_ready(self) -> None:
        """Be in the generation that there is, with all parameters that have gradients by now."""
        if self.closed:
            raise UsageError(
                "this DistributedOptimizer is stepped after another one has been made for the same parameters, which"
                " now reduces their gradients. They would not be reduced here. Step the newer one, or make only one."
            )
        if session.current is not self._engine:
            self._attach()
        if self._dormant:
            self._wake()

    def _submit_missing(self, keep: bool) -> PresenceCheck | None:
        """Submit the buckets that no hook has completed, and ask who sent what alone."""
        for bucket in self._buckets:
            if not bucket.submitted:
                self._complete(bucket, keep)
        return self._call(keep)

    def _put_back(self, roll: PresenceCheck | None, keep: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Put what was reduced where it belongs: what travelled alone, and what the guard is to look at."""
        self._asked_last = self._buckets[0].asks() if self._buckets else 0
        marks = [bucket.mark for bucket in self._buckets if bucket.marked]
        troubled = [bucket for bucket in self._buckets if bucket.has_trouble()]
        odd = [entry for bucket in troubled for entry in bucket.sort_out(keep)]
        for bucket in self._buckets:
            if keep and bucket.entries[0].view is None:
                bucket.cast_back()
        for bucket in troubled:
            bucket.reset(had_trouble=True)
        received = self._receive(roll, odd, keep)
        return received, marks + [t for t, entry in zip(received, self._step.alone, strict=True) if entry.marked]

    def _give_up(self) -> None:
        """What is under way goes on without us, and must find its memory where it was."""
        self._abandoned.append((*self._step.buckets, *[(entry.sent, entry.kept) for entry in self._step.alone]))
        self._presence = None
        for bucket in self._buckets:
            bucket.reset(had_trouble=True)

    def _is_fit(self, marks: list[torch.Tensor], keep: bool, watched: bool) -> bool:
        """Whether to step with them: what the guard says."""
        if self._guard is None:
            return True
        if not keep:
            self._guard.forget()
            return True
        return self._guard.after_reduce(() if watched else marks, watched=watched) is StepDecision.GO

    def after_step(self) -> None:
        """The optimizer has stepped. Now and then it is time to compare the ranks' parameters."""
        self.steps += 1
        every = self._guard.every if self._guard is not None else 0
        if self._asked_last & REPLICAS and self._guard is not None and every:
            # Ranks may have counted differently, if some joined before others.
            step = every * max(1, round(self.steps / every)) if self.steps > 1 else 1
            self._guard.check_replicas(((entry.label, entry.parameter) for entry in self._entries), step)
        if self._is_first:
            self._ask_next = REPLICAS if every and (self.steps + 1) % every == 0 else 0
            if self._summary is not None and self._summary.is_due():
                self._ask_next |= FIGURES

    def _wait(self) -> None:
        """For the buckets; the guard hears what the core has found in them."""
        for bucket, under_way in self._step.buckets:
            found = under_way.wait().not_finite
            if found and self._guard is not None:
                self._guard.hear(found, bucket.pieces)

    def _complete(self, bucket: Bucket, keep: bool) -> None:
        """Put the gradients into a bucket that no hook put there: set by hand, short of a pass, or none."""
        for entry in bucket.entries:
            if entry.left <= 0:
                continue
            if not keep or entry.parameter.grad is None:
                bucket.mark_absent(entry.place)
            else:
                (hooks.cast if entry.view is None else hooks.put)(entry, bucket)
        self._submit(bucket)

    def _call(self, keep: bool) -> PresenceCheck | None:
        """Send what is reduced by itself and no hook sent, and check who has which gradient."""
        if not self._unbucketed:
            return None
        if self._presence is None:
            name = f"{self._namespace}.roll.{next(self._builds)}"
            self._presence = PresenceCheck(self._unbucketed, session.engine(), name, self._rule.process_set)
        for entry in self._unbucketed:
            if entry.sent is None and keep and entry.parameter.grad is not None:
                self._send(entry, entry.parameter.grad)
        self._presence.start(self._step.alone, 0 if self._buckets else self._ask_next)
        return self._presence

    def _receive(self, roll: PresenceCheck | None, odd: list[GradientEntry], keep: bool) -> list[torch.Tensor]:
        """Hear the presence check, help the others with what only they have, take the results; then change what is
        due."""
        heard = roll.hear() if roll is not None else None
        self._asked_last |= roll.asks if roll is not None else 0
        taking_part, answers = heard if heard is not None else (0, [])
        for entry, answer in zip(self._unbucketed, answers, strict=False):
            if not self._rule.sparse_as_dense:
                unbucketed.refuse_mixed(entry, answer)
            if entry.sent is None and answer.kind:
                self._bring_nothing(entry, answer.kind)
            elif entry.sent is not None and answer.sparse and entry.resparse < 0:
                entry.resparse = 1  # sparse_as_dense: sparse for the others
        for entry in odd:
            grad = entry.parameter.grad if keep else None
            self._bring_nothing(entry, DENSE) if grad is None else self._send(entry, grad)
        received = [self._take(entry, keep) for entry in self._step.alone]
        for bucket in {id(b): b for entry in odd if (b := entry.bucket) is not None}.values():
            self._dissolve(bucket)
            self._buckets.remove(bucket)
        if heard is not None and taking_part == len(self._rule.process_set.members):
            self._promote(answers)
        return received

    def _bring_nothing(self, entry: GradientEntry, kind: int) -> None:
        nothing = unbucketed.stand_in(entry.parameter, kind, self._rule.sparse_as_dense)
        self._send(entry, nothing)
        if kind == unbucketed.SPARSE and self._rule.sparse_as_dense:
            entry.resparse = 1

    def _take(self, entry: GradientEntry, keep: bool) -> torch.Tensor:
        assert entry.sent is not None
        result = entry.sent()
        if entry.not_finite and self._guard is not None:
            label = entry.label
            self._guard.hear(entry.not_finite, lambda: ((label, result),))
        if keep and entry.parameter.grad is entry.kept:  # and the user has not thrown it away meanwhile
            if entry.resparse >= 0:
                result = result.to_sparse(entry.resparse)
            if result is not entry.kept:
                entry.parameter.grad = result
        return result

    def _reset(self) -> None:
        """Ready for the next step."""
        for entry in self._step.alone:
            entry.sent = entry.kept = None
            entry.kind, entry.resparse, entry.marked, entry.not_finite = 0, -1, False, ()
        self._step = _Step(_finished_steps)
        for bucket in self._buckets:
            bucket.reset()
            if bucket.entries[0].view is None:
                for entry in bucket.entries:
                    entry.kept = None
        passes = self._passes
        for entry in self._entries:
            entry.left = passes

    # ---- buckets ----

    def _promote(self, answers: list[GradientPresence]) -> None:
        """Put into buckets what the answers say may go there, from the next step on."""
        planned, changed = travel.settle(self._unbucketed, answers, self._rule, self._most_bytes)
        if changed:
            self._presence = None
        for entries in planned:
            self._build(entries)

    def _build(self, entries: list[GradientEntry]) -> None:
        bucket = Bucket(entries, travel.dtype_on_wire(entries[0].parameter, self._rule), len(self._buckets))
        bucket.marked = not (self._core_looks and bucket.flat.is_cpu)
        bucket.start = travel.prepare(f"{self._namespace}.bucket.{next(self._builds)}", bucket.flat, self._rule)
        if (wire := travel.between_hosts(bucket.flat, self._rule)) is not None:
            bucket.sent_bytes = bucket.flat.numel() * wire.itemsize
        self._buckets.append(bucket)
        for entry in entries:
            self._unbucketed.remove(entry)
            self._hook(entry)

    def _dissolve(self, bucket: Bucket) -> None:
        """Let its parameters be reduced each by itself again, until they find another."""
        for entry in bucket.entries:
            entry.bucket = entry.view = entry.kept = None
            self._unbucketed.append(entry)
            self._hook(entry)
        self._presence = None
