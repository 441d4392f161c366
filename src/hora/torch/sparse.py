"""The allreduce of sparse tensors: indices and values are gathered, then added up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hora.engine.process_set import ProcessSet, global_process_set
from hora.errors import MismatchError, UsageError
from hora.ops.call import Call
from hora.ops.document import documented
from hora.ops.resolve import reduction
from hora.ops.table import FUNCTIONS
from hora.torch import submit
from hora.torch.adapter import dtype_of
from hora.types import Kind, ReduceOp

__all__ = ["sparse_allreduce_async"]

_SPARSE_ALLREDUCE = FUNCTIONS["sparse_allreduce_async"][0]


@documented
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    if tensor.layout is not torch.sparse_coo:
        raise UsageError(
            f"sparse_allreduce_async of a tensor of layout {tensor.layout}. It gathers the indices and values of"
            " sparse COO tensors. Convert with .to_sparse(), or use allreduce_async for a dense tensor."
        )
    own = tensor.detach().coalesce()
    how = reduction(_SPARSE_ALLREDUCE, (dtype_of(own.values()),), op)
    shape = torch.tensor([own.shape], device=own.device)
    call = Call(Kind.ALLGATHER, name, process_set, grouped=True)
    started = submit.start(call, [own.indices().t(), own.values(), shape])

    def wait() -> torch.Tensor:
        indices, values, shapes = started.wait().tensors
        if len(shapes.unique(dim=0)) > 1:
            table = "\n".join(
                f"  rank {rank}: shape {tuple(row)}"
                for rank, row in zip(process_set.ranks, shapes.tolist(), strict=True)
            )
            raise MismatchError(
                f"{started.request.name}: the ranks' sparse tensors have different shapes:\n{table}\nThey cannot be"
                " added. Give all ranks the same shape; only the number of non-zeros may differ."
            )
        # Indices below the shape on every rank are below it together: torch need not check them again.
        total = torch.sparse_coo_tensor(indices.t(), values, own.shape, check_invariants=False).coalesce()
        if how.op is ReduceOp.AVERAGE:
            total.values().copy_(total.values() / process_set.size())
        return total

    return wait
