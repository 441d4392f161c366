"""PowerSGD: a gradient as the product of two thin matrices (Vogels, Karimireddy, Jaggi, 2019).

A gradient of shape (a, b, c, …) is taken as a matrix X of a rows and b · c · … columns. With V, a matrix of ``rank``
orthonormal columns that all ranks have in common::

    P = Σ X V  over ranks          one allreduce, ``<name>.p``
    U = an orthonormal basis of P's columns
    Q = Σ Xᵀ U  over ranks         one allreduce, ``<name>.q``
    result = U Qᵀ                  which is U Uᵀ Σ X: the sum, projected on U
    e  ←  X − U Uᵀ X               what the projection leaves out of this rank's own part

V for the next step is a basis of Q's columns (the warm start): step by step they turn toward the directions in which
the gradients are largest, as in the power iteration. The first V is random, drawn from the gradient's name. If the sum
has no more than ``rank`` independent columns, the result is exact.

Ranks need not agree on V for the result to be right: whatever went into P, U and Q are the same everywhere. So a rank
that missed steps (``join``, or a new one) only makes one step's choice of directions worse.
"""

from __future__ import annotations

import time
import zlib

import torch

from hora.engine import session
from hora.engine.handle import poll, synchronize
from hora.engine.process_set import ProcessSet
from hora.torch.compression.feedback import ErrorFeedback, Exchange, Memory, whole_number
from hora.types import ReduceOp

__all__ = ["PowerSGD"]

_PAUSE_S = 50e-6


class PowerSGD(ErrorFeedback):
    """Send each gradient as two matrices of ``rank`` columns; as it is during the first ``start_step`` steps.

    >>> PowerSGD(rank=2, start_step=100)
    PowerSGD(rank=2, start_step=100)
    """

    def __init__(self, rank: int = 2, start_step: int = 0, smallest: int = 4096) -> None:
        super().__init__(smallest)
        self.rank = whole_number("rank", rank, 1)
        self.start_step = whole_number("start_step", start_step, 0)
        self._under_way: list[_Rounds] = []  # in their first round, oldest first

    def __repr__(self) -> str:
        return f"PowerSGD(rank={self.rank}, start_step={self.start_step})"

    def pays(self, gradient: torch.Tensor, steps: int) -> bool:
        if steps < self.start_step or gradient.dim() < 2:
            return False
        rows, columns = len(gradient), gradient.numel() // len(gradient)
        return (rows + columns) * self.rank * max(4, gradient.itemsize) < gradient.numel() * gradient.itemsize

    def exchange(self, name: str, x: torch.Tensor, memory: Memory, op: ReduceOp, process_set: ProcessSet) -> Exchange:
        matrix = x.view(len(x), -1)
        rank = min(self.rank, *matrix.shape)
        p = matrix @ _basis(_directions(name, matrix, rank, memory.tensors.get("q")))
        self._advance()
        rounds = _Rounds(self, name, matrix, p, op, process_set)
        self._under_way.append(rounds)

        def wait() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            rounds.begin_second()
            # Another rank may finish in another order, and wait for the second round of one that is in its first here.
            while self._advance(all_of_them=True) and not rounds.has_ended():
                time.sleep(_PAUSE_S)
            basis, q = rounds.result()
            return (basis @ q.t()).view_as(x), {"error": x, "q": q}

        return wait

    def _advance(self, all_of_them: bool = False) -> bool:
        """Begin the second round of those whose first has ended: up to the oldest that has not, or of all of them.

        Returns whether any is left in its first. What was abandoned with an earlier generation of Hora is forgotten.
        """
        left = [rounds for rounds in self._under_way if rounds.engine is session.current]
        for rounds in list(left):
            if rounds.first_has_ended():
                rounds.begin_second()
                left.remove(rounds)
            elif not all_of_them:
                break
        self._under_way = left
        return bool(left)


class _Rounds:
    """The two allreduces of one gradient; in the second, ``matrix`` becomes the error."""

    def __init__(
        self,
        compressor: PowerSGD,
        name: str,
        matrix: torch.Tensor,
        p: torch.Tensor,
        op: ReduceOp,
        process_set: ProcessSet,
    ) -> None:
        self._compressor, self._name, self._matrix = compressor, name, matrix
        self._op, self._process_set = op, process_set
        self.engine = session.current
        # A factor does not change what P's columns span, so a sum will do for an average as well.
        self._p = compressor.allreduce(p, f"{name}.p", ReduceOp.SUM, process_set)
        self._q: int | None = None
        self._failure: Exception | None = None

    def first_has_ended(self) -> bool:
        return self._q is not None or self._failure is not None or poll(self._p)

    def begin_second(self) -> None:
        """Wait for P and begin with Q; once. A failure is kept for ``result``, where somebody is waiting for it."""
        if self._q is not None or self._failure is not None:
            return
        try:
            self._basis = _basis(synchronize(self._p))
            q = self._matrix.t() @ self._basis
            self._matrix.addmm_(self._basis, q.t(), alpha=-1)
            self._q = self._compressor.allreduce(q, f"{self._name}.q", self._op, self._process_set)
        except Exception as failure:
            self._failure = failure

    def has_ended(self) -> bool:
        return self._q is None or poll(self._q)

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """U, and the reduced Q."""
        if self._failure is not None:
            raise self._failure
        assert self._q is not None
        q: torch.Tensor = synchronize(self._q)
        return self._basis, q


def _basis(columns: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns that span at least the same, worked out in 64 bits.

    >>> _basis(torch.tensor([[2.0], [0.0]])).abs()
    tensor([[1.],
            [0.]])
    """
    if not columns.isfinite().all():
        return torch.full_like(columns, torch.nan)
    basis: torch.Tensor = torch.linalg.qr(columns.double()).Q
    return basis.to(columns)


def _directions(name: str, matrix: torch.Tensor, rank: int, previous: torch.Tensor | None) -> torch.Tensor:
    """The previous Q, or random columns where there is none: at first, and where a column has become zero.

    A zero column, after a gradient of zeros, would stay zero for ever.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    shape = (matrix.shape[1], rank)
    if previous is None or previous.shape != shape:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(matrix)
    q = previous.to(matrix)
    alive = q.any(0)
    if alive.all():
        return q
    return torch.where(alive, q, torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(matrix))
