"""Guards against training on nonsense: gradients that are not finite, and replicas that are no longer the same.

**Not finite.** One nan on one rank is, after the reduction, a nan on all of them, and nobody knows where it came from.
So every rank adds up what it is about to send, while it is warm: a sum is finite only if everything in it is. A rank
that finds something notes which tensors, and sets one element of what it sends, the *mark*, to nan. After the
reduction all ranks find the mark and know: no message is needed to agree. Only then are the notes gathered, and the
step is reported (``warn``), left out on all ranks (``skip``), or ends the job (``stop``).

**Diverged.** Every so many steps all ranks compute a 64-bit fingerprint of their parameters and compare them in one
small reduction. Only if they differ are the fingerprints of single parameters gathered, and the rank in the minority
and the first parameter that differs are named. It is a warning; with HORA_STRICT=1 an error.

A reducer does this for each buffer, and for each step::

    guard.before_reduce(flat, pieces)                       # pieces: what is in it, (name, tensor), read on finds only
    if guard.after_reduce(marks) is Verdict.SKIP: ...       # one tensor a buffer; all ranks must give the same ones
    guard.check_replicas(named_parameters, step)            # after the optimizer's step, on all ranks

``spent_s`` is what all of it cost this rank so far.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from time import perf_counter
from typing import TypeVar

import torch

from hora.config.settings import NonFinite, Settings
from hora.engine import session
from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import DivergenceError, NonFiniteError
from hora.torch.collectives import Max, Min, Sum, allreduce_
from hora.torch.fingerprint import combined, explain, fingerprints
from hora.torch.numbering import name_of

__all__ = ["Guard", "Verdict", "from_settings", "not_finite"]

_log = logging.getLogger("hora")

T = TypeVar("T", int, str)
Named = Iterable[tuple[str, torch.Tensor]]


class Verdict(Enum):
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
        self.policy: NonFinite = settings.nonfinite
        self.every = settings.divergence_every
        self.spent_s = 0.0
        self._strict = settings.strict
        self._process_set = process_set
        self._name()  # now, because a rank that joins without a step would miss its turn
        self._notes: list[str] = []  # what this rank has found in this step
        self._later: list[tuple[list[str], torch.Tensor]] = []  # the same, of a device that must not be waited for
        self._step = self._times_found = self._times_diverged = 0

    # ---- not finite ----

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

    def after_reduce(self, marks: Iterable[torch.Tensor]) -> Verdict:
        """Look at the marks after the reduction: of all buffers of the step, on all ranks. NonFiniteError for ``stop``.

        Of a tensor the first element is looked at, of a sparse one every value.
        """
        self._step += 1
        if self.policy == "off":
            return Verdict.GO
        began = perf_counter()
        bad = not all(map(_is_finite, marks))
        try:
            return self._report() if bad else Verdict.GO
        finally:
            self._notes.clear()
            self._later.clear()
            self.spent_s += perf_counter() - began

    def _report(self) -> Verdict:
        for names, sums in self._later:
            self._notes += [name for name, value in zip(names, sums.tolist(), strict=True) if value - value != 0]
        notes = self._gather("nonfinite", self._notes)
        self._times_found += 1
        text = explain_not_finite(self._step, dict(zip(self._process_set.members, notes, strict=True)), self.policy)
        if self.policy == "stop":
            raise NonFiniteError(text)
        self._tell(text, self._times_found)
        return Verdict.SKIP if self.policy == "skip" else Verdict.GO

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
        pair = torch.tensor([own, ~own])
        allreduce_(pair, name=f"{self._name()}.replicas", op=Min, process_set=self._process_set)
        lowest, highest = int(pair[0]), ~int(pair[1])
        if lowest != highest:
            self._times_diverged += 1
            rows = self._gather("fingerprints", each)
            text = explain(step, names, dict(zip(self._process_set.members, rows, strict=True)))
            if self._strict:
                raise DivergenceError(text)
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
        longest = torch.tensor([len(data)])
        allreduce_(longest, name=f"{self._name()}.{what}.bytes", op=Max, process_set=self._process_set)
        table = torch.zeros((self._process_set.size(), int(longest)), dtype=torch.uint8)
        table[self._process_set.rank(), : len(data)] = data
        allreduce_(table, name=f"{self._name()}.{what}", op=Sum, process_set=self._process_set)
        return [json.loads(row.numpy().tobytes().rstrip(b"\0") or b"[]") for row in table]

    def _tell(self, text: str, times: int) -> None:
        """Once for all ranks; and the 1st, 2nd, 4th, 8th, … time only, because it may go on for ever."""
        if self._process_set.rank() == 0 and not times & (times - 1):
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


def explain_not_finite(step: int, notes: Mapping[int, Sequence[str]], policy: NonFinite) -> str:
    """Who had what.

    >>> print(explain_not_finite(7, {0: [], 1: ["fc.weight (nan)"]}, "skip"))
    step 7: gradients that are not finite on rank 1: fc.weight (nan).
    Reduced, they are everybody's. The step was left out, on all ranks (HORA_NONFINITE=skip).
    """
    told = [f"on rank {rank}: {_shortened(names)}" for rank, names in notes.items() if names]
    where = "; ".join(told) or "after the reduction, although every rank's own were: their sum is too large"
    return f"step {step}: gradients that are not finite {where}.\nReduced, they are everybody's. {_WHAT_NOW[policy]}"


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
