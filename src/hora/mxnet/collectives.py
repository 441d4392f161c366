"""The collectives of ``hora.mxnet``: its forms in ``ops.table``, made from it. The stub beside has their types."""

from __future__ import annotations

from hora.mxnet.forms import MXNetForms
from hora.ops.dialects import DIALECTS
from hora.ops.forms import make

__all__ = make(DIALECTS["mxnet"], MXNetForms(), __name__)
