"""How a gradient travels: alone or in a bucket, in which type, and by which prepared operation.

Owns these decisions; the reducer carries them out. Each follows from what is the same on all ranks (the optimizer's
rule, the parameter, what the presence check answered), so all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hora.engine import session
from hora.ops.compression import cast_of
from hora.ops.gradients import GradientRule
from hora.torch import submit
from hora.torch.adapter import DTYPES
from hora.torch.bucket import GradientEntry, layout_of, plan
from hora.torch.compression import Compression
from hora.torch.compression.cast import type_between_hosts
from hora.torch.submit import Start
from hora.torch.unbucketed import GradientPresence
from hora.types import DType

__all__ = ["as_it_is", "between_hosts", "dtype_on_wire", "never_bucketed", "prepare", "settle"]


def never_bucketed(parameter: torch.Tensor, rule: GradientRule) -> bool:
    """Whether its gradient never goes into a bucket, whatever the ranks find out."""
    bucketable = rule.compression is Compression.none or cast_of(rule.compression) is not None
    return not bucketable or parameter.dtype not in DTYPES


def between_hosts(tensor: torch.Tensor, rule: GradientRule) -> DType | None:
    """The type that it is rounded to between hosts only, if any."""
    return type_between_hosts(rule.compression, [tensor], session.engine().backend)


def dtype_on_wire(parameter: torch.Tensor, rule: GradientRule) -> torch.dtype:
    """The type in which its gradient is handed over to be reduced."""
    cast = cast_of(rule.compression)
    if cast is not None and cast.element.is_wide(parameter) and between_hosts(parameter, rule) is None:
        smaller: torch.dtype = cast.dtype
        return smaller
    return parameter.dtype


def as_it_is(entry: GradientEntry, rule: GradientRule) -> bool:
    """Whether its gradient may be reduced where autograd put it: in its own type, and with no group to wait for."""
    return entry.group is None and dtype_on_wire(entry.parameter, rule) is entry.parameter.dtype


def prepare(name: str, like: torch.Tensor, rule: GradientRule) -> Start:
    """An operation for every step to come, on tensors like this one."""
    how = rule.how._replace(wire=between_hosts(like, rule))
    return submit.prepare(like, how, name, rule.process_set)


def settle(
    entries: Sequence[GradientEntry], answers: Sequence[GradientPresence], rule: GradientRule, most_bytes: int
) -> tuple[list[list[GradientEntry]], bool]:
    """Settle how those travel from now on that have sent gradients alone, by the answers to the presence check.

    Returns which of them go into new buckets, and whether the roll that was called is out of date.
    """
    found, changed = [], False
    for entry, answer in zip(entries, answers, strict=True):
        if entry.settled or not answer.kind:
            changed = changed or (answer.sparse > 0) > entry.sparse
            entry.sparse = entry.sparse or answer.sparse > 0
            continue
        changed = True
        entry.layout = layout_of(entry.parameter) if answer.same_layout else None
        if answer.sparse:
            entry.settled = entry.sparse = True
        elif answer.shared and as_it_is(entry, rule):
            entry.settled = True
            entry.start = prepare(entry.name, entry.parameter, rule)
        else:
            found.append((answer.order or len(answers) + 1, entry))
    found.sort(key=lambda pair: pair[0])  # stable: those that the first rank did not have stay in their order
    return plan([e for _, e in found], lambda e: dtype_on_wire(e.parameter, rule), most_bytes), changed
