"""Executes one piece of agreed work: from the buffers of its tickets through a mover and back.

Work on a GPU is only queued there: its outcomes say by an event when it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hora.engine.backend import OperationOutcome
from hora.engine.negotiate import MessageTicket, Work
from hora.transport.base import Mover
from hora.types import Buffer, Kind

__all__ = ["execute", "row_counts"]


def execute(work: Work, mover: Mover, rank: int) -> list[OperationOutcome]:
    """Do the work; returns an outcome for each of its tickets. Whatever the mover raises passes through."""
    outcomes = _carry_out(work, mover)
    buffers = work.tickets[0].inputs
    if buffers and buffers[0].device != "cpu":
        finished = mover.mark()
        return [outcome._replace(finished=finished) for outcome in outcomes]
    return outcomes


def _carry_out(work: Work, mover: Mover) -> list[OperationOutcome]:
    first = work.tickets[0]
    request, members = first.request, first.request.members
    match request.kind:
        case Kind.ALLREDUCE:
            mover.allreduce(
                [buffer for ticket in work.tickets for buffer in ticket.inputs],
                [buffer for ticket in work.tickets for buffer in ticket.outputs],
                op=request.how.op,
                prescale=request.how.prescale,
                postscale=request.how.postscale,
                members=members,
                contributors=work.contributors,
                divisor=work.divisor,
                **({} if request.how.wire is None else {"wire": request.how.wire}),
            )
        case Kind.ALLGATHER:
            memory = [_memory(sizes, buffer, mover) for sizes, buffer in zip(work.received, first.inputs, strict=True)]
            for buffer, (_, output), sizes in zip(first.inputs, memory, work.received, strict=True):
                mover.allgather(buffer, output, nbytes=sizes, members=members)
            return [OperationOutcome(tuple(array for array, _ in memory), work.received)]
        case Kind.ALLTOALL:
            (received,) = work.received
            array, output = _memory(received, first.inputs[0], mover)
            sent = _sent_bytes(first, len(members))
            mover.alltoall(first.inputs[0], output, sent=sent, received=received, members=members)
            return [OperationOutcome((array,), work.received)]
        case Kind.BROADCAST:
            for buffer, output in zip(first.inputs, first.outputs, strict=True):
                mover.broadcast(buffer, output, root=request.root, members=members)
        case Kind.REDUCESCATTER:
            for buffer, output in zip(first.inputs, first.outputs, strict=True):
                row = buffer.elements // buffer.shape[0] if buffer.shape[0] else 0
                mover.reducescatter(
                    buffer,
                    output,
                    op=request.how.op,
                    prescale=request.how.prescale,
                    postscale=request.how.postscale,
                    counts=[rows * row for rows in row_counts(buffer.shape[0], len(members))],
                    members=members,
                    divisor=work.divisor,
                )
        case Kind.BARRIER:
            pass  # that everyone agreed is all there is to it
    return [OperationOutcome()] * len(work.tickets)


def row_counts(rows: int, parts: int) -> list[int]:
    """How a reducescatter deals out rows: what does not divide goes to the lowest ranks.

    >>> row_counts(7, 3)
    [3, 2, 2]
    """
    return [rows // parts + (i < rows % parts) for i in range(parts)]


def _memory(sizes: Sequence[int], like: Buffer, mover: Mover) -> tuple[Any, Buffer]:
    """Room for what is received, where the input is."""
    nbytes, shape = sum(sizes), (sum(sizes) // like.dtype.itemsize,)
    if like.device != "cpu":
        tensor = mover.allocate(nbytes, like)
        return tensor, Buffer(tensor.data_ptr(), like.dtype, shape, tensor, like.device)
    array = np.empty(nbytes, dtype="uint8")
    return array, Buffer(array.ctypes.data, like.dtype, shape, array)


def _sent_bytes(ticket: MessageTicket, parts: int) -> list[int]:
    buffer, splits = ticket.inputs[0], ticket.request.splits
    rows = buffer.shape[0]
    row_bytes = buffer.nbytes // rows if rows else 0
    return [split * row_bytes for split in splits or [rows // parts] * parts]
