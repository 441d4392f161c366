"""Guards against training on nonsense: gradients that are not finite, and replicas that are no longer the same.

**Not finite.** One nan on one rank is, after the reduction, a nan on all of them, and nobody knows where it came from.
In shared memory the C core notices it while it sums, and tells every rank who brought it, and where (``hear``). What is
reduced otherwise, each rank adds up before it sends it: a sum is finite only if everything in it is. A rank that finds
something notes which tensors, and sets one element of what it sends, the *mark*, to nan. After the reduction all ranks
find the mark and know: no message is needed to agree. Only then are the notes gathered. Either way the step is reported
(``warn``), left out on all ranks (``skip``), or ends the job (``stop``), and all ranks do the same.

**Diverged.** Every so many steps all ranks compute a 64-bit fingerprint of their parameters and compare them in one
small reduction. Only if they differ are the fingerprints of single parameters gathered, and the rank in the minority
and the first parameter that differs are named. It is a warning; with HORA_STRICT=1 an error.

A reducer does this for each buffer, and for each step::

    guard.before_reduce(flat, pieces)                       # pieces: what is in it, (name, tensor), read on finds only
    guard.hear(outcome.not_finite, bucket.pieces)           # instead, where the core looks
    if guard.after_reduce(marks) is Verdict.SKIP: ...       # one tensor a buffer; all ranks must give the same ones
    guard.check_replicas(named_parameters, step)            # after the optimizer's step, on all ranks

``spent_s`` is what all of it cost this rank so far.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from time import perf_counter
from typing import TypeVar

import torch

from hora.basics import Max, Min, Sum
from hora.config.settings import NonFinite as Policy
from hora.config.settings import Settings
from hora.engine import session
from hora.engine.backend import NotFinite
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import DivergenceError, NonFiniteError
from hora.ops.numbering import name_of
from hora.torch.collectives import allreduce_
from hora.torch.fingerprint import combined, explain, fingerprints

__all__ = ["Guard", "StepDecision", "from_settings", "not_finite"]

_log = logging.getLogger("hora")

_SMALL_BYTES, _LOOK_EVERY = 1 << 20, 16

T = TypeVar("T", int, str)
Named = Iterable[tuple[str, torch.Tensor]]


class StepDecision(Enum):
    """What to do with a step."""

    GO = "go"
    SKIP = "skip"


def from_settings(process_set: ProcessSet = global_process_set) -> Guard | None:
    """A guard as the settings want it; None if they want none.

    >>> from hora.engine import session
    >>> session.init()
    >>> from_settings().policy
    'warn'
    >>> session.shutdown()
    """
    settings = session.engine().settings
    return Guard(settings, process_set) if settings.nonfinite != "off" or settings.divergence_every else None


class Guard:
    """The guards of one optimizer."""

    def __init__(self, settings: Settings, process_set: ProcessSet = global_process_set) -> None:
        self.policy: Policy = settings.nonfinite
        self.every = settings.divergence_every
        self.spent_s = 0.0
        self._strict = settings.strict
        self._process_set = process_set
        self._name()  # now, because a rank that joins without a step would miss its turn
        self._notes: list[str] = []  # what this rank has found in this step
        self._heard: list[tuple[Sequence[NotFinite], Callable[[], Named]]] = []  # what the core has, on any rank
        self._later: list[tuple[list[str], torch.Tensor]] = []  # the same, of a device that must not be waited for
        self._step = self._times_found = self._times_diverged = 0

    # ---- not finite ----

    def looks_at(self, nbytes: int, number: int) -> bool:
        """Whether ``before_reduce`` is worth it for the ``number``-th buffer, of this size, of a step.

        Looking costs as much as reading it from memory. To leave a step out, or to stop, all must be seen in time; to
        warn it is enough to see what is large now and then: what is not finite soon reaches what is small.
        """
        return nbytes <= _SMALL_BYTES or self.policy != "warn" or (self._step + number) % _LOOK_EVERY == 0

    def before_reduce(self, flat: torch.Tensor, pieces: Named, mark: torch.Tensor | None = None) -> None:
        """Look at what this rank is about to send; if it is not finite, make the mark nan.

        Args:
            flat: All of it, in one tensor.
            pieces: The names of what is in it and where; only read if something is found (on other devices, always).
            mark: One element that is reduced with it; the first one of ``flat`` unless given.
        """
        if self.policy == "off" or not flat.numel() or not flat.is_floating_point():
            return
        began = perf_counter()
        total = flat.sum() if flat.itemsize > 2 else flat.sum(dtype=torch.float32)
        if flat.is_cpu:
            if not math.isfinite(total.item()) and (found := not_finite(pieces)):  # large numbers may overflow the sum
                self._notes += found
                (_first(flat) if mark is None else mark).fill_(math.nan)
        else:
            pairs = list(pieces)
            sums = torch._foreach_norm([piece for _, piece in pairs], 1)
            self._later.append(([name for name, _ in pairs], torch.stack([norm.float() for norm in sums])))
            (_first(flat) if mark is None else mark).add_((total * 0).to(flat.dtype))  # 0, or nan
        self.spent_s += perf_counter() - began

    def hear(self, found: Sequence[NotFinite], pieces: Callable[[], Named]) -> None:
        """What the core has found in a buffer; ``pieces`` says what is in it, reduced by now."""
        if self.policy != "off":
            self._heard.append((found, pieces))

    def after_reduce(self, marks: Sequence[torch.Tensor] = (), *, watched: bool = False) -> StepDecision:
        """Look at the marks after the reduction: of all buffers of the step, on all ranks. NonFiniteError for ``stop``.

        Of a tensor the first element is looked at, of a sparse one every value.

        Args:
            marks: One tensor for each buffer that went through ``before_reduce``.
            watched: Somebody else decides about the step, such as a GradScaler, to which it is nothing special.
        """
        self._step += 1
        if not self._heard and (not marks or self.policy == "off"):
            return StepDecision.GO
        began = perf_counter()
        try:
            if watched:
                notes = self._heard_notes() if _log.isEnabledFor(logging.DEBUG) else {}
                _log.debug("step %d: a GradScaler finds what is not finite %s", self._step, _where(notes))
                return StepDecision.GO
            marked = not all(map(_is_finite, marks))
            return self._report(marked) if marked or self._heard else StepDecision.GO
        finally:
            self.forget()
            self.spent_s += perf_counter() - began

    def forget(self) -> None:
        """What was found in this step does not matter: it is thrown away."""
        self._notes.clear()
        self._later.clear()
        self._heard.clear()

    def _report(self, marked: bool) -> StepDecision:
        """Tell who had what, if it is time to."""
        for names, sums in self._later:
            self._notes += [name for name, value in zip(names, sums.tolist(), strict=True) if value - value != 0]
        gathered = self._gather("nonfinite", self._notes) if marked else [[] for _ in self._process_set.members]
        self._times_found += 1
        if self.policy == "stop" or self._is_time(self._times_found):
            notes = self._heard_notes()
            for rank, more in zip(self._process_set.members, gathered, strict=True):
                notes.setdefault(rank, []).extend(more)
            text = explain_not_finite(self._step, notes, self.policy)
            if self.policy == "stop":
                raise NonFiniteError(text)
            self._tell(text, self._times_found)
        return StepDecision.SKIP if self.policy == "skip" else StepDecision.GO

    def _heard_notes(self) -> dict[int, list[str]]:
        """By rank, in words, what the core has found; -1: a sum that is too large."""
        notes: dict[int, list[str]] = {}
        for found, pieces in self._heard:
            known = list(pieces())
            if len(found) == 1 and len(known) > 1:  # then what is not finite by now is all of that rank
                notes.setdefault(found[0].rank, []).extend(not_finite(known))
                continue
            for first in found:
                starts = [piece.storage_offset() if len(known) > 1 else 0 for _, piece in known]
                place = sum(start <= first.element for start in starts) - 1
                note = f"{known[place][0]} ({'nan' if first.is_nan else 'inf'})"
                notes.setdefault(first.rank, []).append(note)
        return dict(sorted(notes.items()))

    # ---- diverged ----

    def check_replicas(self, named_parameters: Named, step: int) -> bool:
        """After step number ``step`` (from 1): compare the parameters, if it is time. False if they differ.

        It is time after the first step, where forgetting to broadcast shows, and after every ``every`` steps.
        """
        if not self.every or (step % self.every and step != 1) or self._process_set.size() == 1:
            return True
        began = perf_counter()
        names, tensors = zip(*named_parameters, strict=True)
        each = fingerprints(tensors)
        own = combined(each)
        pair = torch.tensor([own, ~own], device="cpu")
        allreduce_(pair, name=f"{self._name()}.replicas", op=Min, process_set=self._process_set)
        lowest, highest = int(pair[0]), ~int(pair[1])
        if lowest != highest:
            self._times_diverged += 1
            rows = self._gather("fingerprints", each)
            text = explain(step, names, dict(zip(self._process_set.members, rows, strict=True)))
            if self._strict:
                raise DivergenceError(text)
            if self._is_time(self._times_diverged):
                self._tell(text, self._times_diverged)
        spent_s = perf_counter() - began
        self.spent_s += spent_s
        _log.debug("fingerprints of %d parameters took %.1f ms", len(names), 1e3 * spent_s)
        return lowest == highest

    # ---- together ----

    def _name(self) -> str:
        return name_of(self, "guard", self._process_set)

    def _gather(self, what: str, own: list[T]) -> list[list[T]]:
        """Every rank's list, in rank order, [] for one that has joined: by reductions, which go on after a join."""
        data = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        longest = torch.tensor([len(data)], device="cpu")
        allreduce_(longest, name=f"{self._name()}.{what}.bytes", op=Max, process_set=self._process_set)
        table = torch.zeros((self._process_set.size(), int(longest)), dtype=torch.uint8, device="cpu")
        table[self._process_set.rank(), : len(data)] = data
        allreduce_(table, name=f"{self._name()}.{what}", op=Sum, process_set=self._process_set)
        return [json.loads(row.numpy().tobytes().rstrip(b"\0") or b"[]") for row in table]

    def _is_time(self, times: int) -> bool:
        """Whether to tell: once for all ranks; and the 1st, 2nd, 4th, 8th, … time, because it may go on for ever."""
        return self._process_set.rank() == 0 and not times & (times - 1)

    def _tell(self, text: str, times: int) -> None:
        _log.warning("%s%s", text, f" (The {times}th time.)" if times > 2 else "")


def not_finite(pieces: Named) -> list[str]:
    """Which of them hold inf or nan.

    >>> not_finite([("a", torch.ones(3)), ("b", torch.tensor([1.0, float("nan")])), ("c", torch.tensor([math.inf]))])
    ['b (nan)', 'c (inf)']
    """
    found = []
    for name, piece in pieces:
        if not torch.isfinite(piece).all():
            found.append(f"{name} ({'nan' if torch.isnan(piece).any() else 'inf'})")
    return found


_WHAT_NOW = {
    "warn": "The step goes on with it and may ruin the parameters. HORA_NONFINITE=skip leaves such steps out,"
    " =stop ends the job.",
    "skip": "The step was left out, on all ranks (HORA_NONFINITE=skip).",
    "stop": "No parameter was changed by it; the job ends here (HORA_NONFINITE=stop). Lower the learning rate, clip"
    " gradients, or look at that rank's data.",
}


def explain_not_finite(step: int, notes: Mapping[int, Sequence[str]], policy: Policy) -> str:
    """Who had what.

    >>> print(explain_not_finite(7, {0: [], 1: ["fc.weight (nan)"]}, "skip"))
    step 7: gradients that are not finite on rank 1: fc.weight (nan).
    Reduced, they are everybody's. The step was left out, on all ranks (HORA_NONFINITE=skip).
    """
    first = f"step {step}: gradients that are not finite {_where(notes)}."
    return f"{first}\nReduced, they are everybody's. {_WHAT_NOW[policy]}"


def _where(notes: Mapping[int, Sequence[str]]) -> str:
    told = [f"on rank {rank}: {_shortened(names)}" for rank, names in notes.items() if names and rank >= 0]
    if too_large := notes.get(-1, ()):
        told.append(
            f"after the reduction: {_shortened(too_large)}, although every rank's own are: their sum is too large"
        )
    return "; ".join(told) or "after the reduction, although every rank's own are: their sum is too large"


def _shortened(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_finite(mark: torch.Tensor) -> bool:
    if mark.layout is not torch.strided:
        mark = mark.coalesce().values().sum()
    elif mark.numel() > 1:
        mark = _first(mark)
    return not mark.numel() or math.isfinite(mark.item())


def _first(tensor: torch.Tensor) -> torch.Tensor:
    """The first element, as a view, whatever the layout."""
    return tensor.detach().as_strided((1,), (1,), tensor.storage_offset())
