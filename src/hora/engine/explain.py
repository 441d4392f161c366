"""What is wrong with a set of requests under one name, in words: pure functions, the same text wherever they run.

The checks come in Horovod's order and the first that fails is the one reported. Where Horovod says that "one rank" and
"another rank" differ, these say which, with every rank's value and source line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hora.engine.request import Request, TensorSpec
from hora.errors import PeerLostError
from hora.types import Kind, ReduceOp, Rows
from hora.wire.messages import Peer

__all__ = [
    "compact_ranks",
    "explain_joined",
    "explain_left",
    "explain_mismatch",
    "explain_unfit",
    "given_up",
    "is_gradient",
    "lost",
    "note_uneven",
    "suspicious_lines",
    "tell_uneven",
    "uneven",
]

_MAX_ROWS = 16
_ADVICE = (
    "Nothing was computed and only this operation failed, with this message on every rank that submitted it.\n"
    "Make the calls agree, or give different operations different names."
)


def lost(peer: Peer, status: str, name: str, words: str = "") -> PeerLostError:
    """The error of whoever waits for a rank that died; ``words`` are the last it said.

    >>> print(lost(Peer(1, 1, 4242, "node7"), "signal 9 (SIGKILL)", "allreduce.x"))
    rank 1 (host node7, pid 4242) died: signal 9 (SIGKILL). 'allreduce.x' was waiting for it.
    No operation can finish without it. Look at the output of rank 1 for the reason.
    """
    reason = f"The last it said:\n{words}" if words else f"Look at the output of rank {peer.rank} for the reason."
    text = f"{peer} died: {status}. '{name}' was waiting for it.\nNo operation can finish without it. {reason}"
    return PeerLostError(text, rank=peer.rank, host=peer.host, pid=peer.pid, status=status)


def given_up(rank: int, status: str) -> str:
    """What a rank is told that was stopped for too long, and goes on."""
    return (
        f"the others have given rank {rank} up: {status}. They went on, or ended, without it.\n"
        "It runs again, but this generation is over: end this process. Raise HORA_STALL_SHUTDOWN_TIME_SECONDS if "
        "workers may be stopped for so long."
    )


def explain_left(name: str, left: Iterable[int]) -> str:
    """What a rank is told that waits for others which have shut down in good order.

    >>> print(explain_left("allreduce.gradients.0.bucket.1", [0]))
    'allreduce.gradients.0.bucket.1' cannot be done: rank 0 has shut Hora down without submitting it.
    All members of its process set have to take part.
    If rank 0 had fewer batches, let every rank call hvd.join() after its last one, or give all ranks as many \
(drop_last=True); else look at what rank 0 did last.
    """
    left = list(left)
    who, have = compact_ranks(left), "has" if len(left) == 1 else "have"
    uneven_data = (
        f"If {who} had fewer batches, let every rank call hvd.join() after its last one, or give all ranks as many "
        "(drop_last=True); else look"
    )
    return (
        f"'{name}' cannot be done: {who} {have} shut Hora down without submitting it.\n"
        "All members of its process set have to take part.\n"
        f"{uneven_data if is_gradient(name) else 'Look'} at what {who} did last."
    )


def is_gradient(name: str) -> bool:
    """Whether an operation is of a training step: only there may some ranks have more batches than others.

    >>> is_gradient("allreduce.gradients.0.bucket.1"), is_gradient("allreduce.x")
    (True, False)
    """
    return "gradients" in name.split(".")


def uneven(steps: int) -> str:
    """A note for the error of a rank that brought gradients which others did not: how many batches they had.

    >>> uneven(10)
    'All ranks have done 10 steps together; this rank was in step 11.'
    """
    return f"All ranks have done {steps} steps together; this rank was in step {steps + 1}."


def note_uneven(error: Exception, steps: int) -> None:
    """Add that note, once."""
    if not getattr(error, "__notes__", None):
        error.add_note(uneven(steps))


def tell_uneven(error: Exception, steps: int) -> None:
    """The same in the error's own text, once: for frameworks that keep only that of an error in a compiled program."""
    if (more := uneven(steps)) not in str(error):
        error.args = (f"{error}\n{more}", *error.args[1:])


def explain_mismatch(requests: Mapping[int, Request]) -> str | None:
    """Why these ranks' requests for one name cannot be one operation; None if they can.

    >>> from hora.types import DType
    >>> make = lambda dtype: Request(Kind.ALLREDUCE, "allreduce.x", (TensorSpec(dtype, (3,)),), (0, 1),
    ...     line="train.py:7")
    >>> explain_mismatch({0: make(DType.FLOAT32), 1: make(DType.FLOAT32)})
    >>> print(explain_mismatch({0: make(DType.FLOAT32), 1: make(DType.INT32)}))
    Mismatched data types for 'allreduce.x': the ranks mean different things by this name.
      rank 0  float32  train.py:7
      rank 1  int32    train.py:7
    Nothing was computed and only this operation failed, with this message on every rank that submitted it.
    Make the calls agree, or give different operations different names.
    """
    if len(set(map(id, requests.values()))) == 1:  # as mostly, where hundreds of ranks say the same
        return None
    for what, value in _CHECKS:
        values = {rank: value(request) for rank, request in sorted(requests.items())}
        if len(set(values.values())) > 1:
            name = requests[min(requests)].name
            return (
                f"Mismatched {what} for '{name}': the ranks mean different things by this name.\n"
                f"{_table(values, requests)}\n{_ADVICE}"
            )
    return None


def explain_unfit(requests: Mapping[int, Request], contributors: int) -> str | None:
    """Why an operation on which all ranks agree still cannot be done; None if it can.

    >>> from hora.types import DType
    >>> request = Request(Kind.ALLGATHER, "allgather.x", (TensorSpec(DType.FLOAT32, ()),), (0,), line="train.py:7")
    >>> print(explain_unfit({0: request}, 1))
    'allgather.x' cannot be done: an allgather needs tensors of at least one dimension.
      rank 0  ()  train.py:7
    Reshape the tensor with reshape(1) before the call.
    """
    first = requests[min(requests)]

    def refuse(reason: str, value: Callable[[Request], str], advice: str) -> str:
        values = {rank: value(request) for rank, request in sorted(requests.items())}
        return f"'{first.name}' cannot be done: {reason}.\n{_table(values, requests)}\n{advice}"

    kind = first.kind.name.lower()
    if first.kind.rows is not Rows.WHOLE and any(not s.shape for s in first.segments):
        reason = f"{_article(kind)} needs tensors of at least one dimension"
        return refuse(reason, _shapes, "Reshape the tensor with reshape(1) before the call.")
    if first.kind.ops and first.how.op not in first.kind.ops:
        ops = [op.name.lower() for op in sorted(first.kind.ops, reverse=True)]
        advice = f"Use {' or '.join(f'op=hora.{op.capitalize()}' for op in ops)}."
        return refuse(f"{_article(kind)} can only {' or '.join(ops)}", _op, advice)
    if first.kind is Kind.ALLREDUCE and first.how.op is ReduceOp.ADASUM:
        if contributors & (contributors - 1):
            reason = f"Adasum combines ranks in pairs, so their number must be a power of two, and it is {contributors}"
            return refuse(reason, _op, "Use 2, 4, 8, … ranks, or op=hora.Average.")
        if any(not s.dtype.is_float for s in first.segments):
            return refuse("Adasum needs floating point numbers", _dtypes, "Convert the tensor, or use op=hora.Sum.")
    if first.kind is Kind.ALLTOALL and any(not _splits_fit(request) for request in requests.values()):
        reason = "the splits do not fit: one number of rows for each member, none negative, together at most all rows"
        return refuse(reason, lambda r: f"{_shapes(r)} splits {_or_none(r.splits)}", "Correct splits= on those ranks.")
    return None


def explain_joined(requests: Mapping[int, Request]) -> str:
    """Why what these ranks ask for cannot be done without the members that are missing, which have all joined.

    >>> request = Request(Kind.BROADCAST, "broadcast.x", (), (0, 1, 2), line="train.py:7")
    >>> print(explain_joined({0: request, 2: request}))
    'broadcast.x' cannot be done: rank 1 has joined and brings no data.
    An allreduce or a barrier goes on with the ranks that are left, but a broadcast needs all members.
    Call broadcast before any rank calls join(), or use a process set of the ranks that still have data.
    """
    first = requests[min(requests)]
    joined = [member for member in first.members if member not in requests]
    kind = first.kind.name.lower()
    needs = "Adasum" if first.kind is Kind.ALLREDUCE and first.how.op is ReduceOp.ADASUM else _article(kind)
    have, bring = ("has", "brings") if len(joined) == 1 else ("have", "bring")
    return (
        f"'{first.name}' cannot be done: {compact_ranks(joined)} {have} joined and {bring} no data.\n"
        f"An allreduce or a barrier goes on with the ranks that are left, but {needs} needs all members.\n"
        f"Call {kind} before any rank calls join(), or use a process set of the ranks that still have data."
    )


def suspicious_lines(requests: Mapping[int, Request]) -> str | None:
    """A warning if an operation without a name was called from different lines on different ranks; None if not.

    >>> make = lambda line: Request(Kind.BARRIER, "barrier.noname.1", (), (0, 1), named=False, line=line)
    >>> print(suspicious_lines({0: make("a.py:1"), 1: make("a.py:5")}))
    'barrier.noname.1' was not given a name and pairs calls from different lines, perhaps by accident.
      rank 0  a.py:1
      rank 1  a.py:5
    Operations without names are paired by the order of the calls, so a call that only some ranks make shifts all that \
follow.
    Give both calls the same name= if they belong together; with HORA_STRICT=1 this is an error.
    """
    if all(request.named for request in requests.values()) or len({r.line for r in requests.values()}) < 2:
        return None
    name = requests[min(requests)].name
    lines = {rank: request.line for rank, request in sorted(requests.items())}
    return (
        f"'{name}' was not given a name and pairs calls from different lines, perhaps by accident.\n"
        f"{_rows((line, ranks) for line, ranks in _grouped(lines).items())}\n"
        "Operations without names are paired by the order of the calls, so a call that only some ranks make shifts all "
        "that follow.\n"
        "Give both calls the same name= if they belong together; with HORA_STRICT=1 this is an error."
    )


def _article(kind: str) -> str:
    return f"{'an' if kind.startswith('a') else 'a'} {kind}"


def compact_ranks(ranks: Iterable[int]) -> str:
    """
    >>> compact_ranks([3]), compact_ranks([4, 0, 1, 2, 7])
    ('rank 3', 'ranks 0-2, 4, 7')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)
    return f"rank{'' if len(runs) == 1 and runs[0][0] == runs[0][1] else 's'} {text}"


# ---- the values that must be equal, in the order in which they are compared ----


def _dtypes(request: Request) -> str:
    return _listed(s.dtype.name.lower() for s in request.segments)


def _group(request: Request) -> str:
    kind = request.kind.name.lower()
    return f"grouped {kind} of {request.tensors}" if request.grouped or request.tensors > 1 else kind


def _shape(request: Request, segment: TensorSpec) -> str:
    if request.kind.gathers and segment.shape:
        return "(" + ", ".join(["any", *map(str, segment.shape[1:])]) + ")"
    return str(segment.shape)


def _shapes(request: Request) -> str:
    return _listed(str(s.shape) for s in request.segments)


def _matching_shapes(request: Request) -> str:
    return _listed(_shape(request, s) for s in request.segments)


def _op(request: Request) -> str:
    return request.how.op.name.capitalize()


_CHECKS: tuple[tuple[str, Callable[[Request], str]], ...] = (
    # Groups of different sizes differ in their lists of types too; that would be a true but unhelpful answer.
    ("group sizes", lambda r: f"{r.tensors} tensor" + ("" if r.tensors == 1 else "s")),
    ("data types", _dtypes),
    ("operations", _group),
    ("shapes", _matching_shapes),
    ("scale factors", lambda r: f"prescale {r.how.prescale!r}, postscale {r.how.postscale!r}"),
    ("reduce operations", _op),
    ("compressions", lambda r: "none" if r.how.wire is None else r.how.wire.name.lower()),
    ("root ranks", lambda r: f"root {r.root}"),
    ("devices", lambda r: r.device),
)


def _splits_fit(request: Request) -> bool:
    rows, parts = request.segments[0].shape[0], len(request.members)
    if request.splits is None:
        return rows % parts == 0
    return len(request.splits) == parts and min(request.splits) >= 0 and sum(request.splits) <= rows


def _or_none(splits: tuple[int, ...] | None) -> str:
    return "none (equal parts)" if splits is None else str(splits)


# ---- tables ----


def _listed(values: Iterable[str]) -> str:
    """Values with repeats counted, so that a group of a thousand alike stays readable."""
    runs: list[tuple[str, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    shown = [value if times == 1 else f"{value} x{times}" for value, times in runs[:8]]
    return ", ".join(shown + ["…"] * (len(runs) > 8)) or "nothing"


def _table(values: Mapping[int, str], requests: Mapping[int, Request]) -> str:
    width = max(map(len, values.values()))
    cells = {rank: f"{value:<{width}}  {requests[rank].line}" for rank, value in values.items()}
    return _rows(_grouped(cells).items())


def _grouped(cells: Mapping[int, str]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for rank, cell in cells.items():
        grouped.setdefault(cell, []).append(rank)
    return grouped


def _rows(rows: Iterable[tuple[str, list[int]]]) -> str:
    labelled = [(compact_ranks(ranks), cell) for cell, ranks in rows]
    width = max(len(label) for label, _ in labelled)
    lines = [f"  {label:<{width}}  {cell}" for label, cell in labelled[:_MAX_ROWS]]
    if len(labelled) > _MAX_ROWS:
        lines.append(f"  … and {len(labelled) - _MAX_ROWS} more")
    return "\n".join(lines)
