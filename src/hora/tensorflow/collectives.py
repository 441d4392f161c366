"""The collectives of ``hora.tensorflow``: its forms in ``ops.table``, made from it. The stub beside has their types."""

from __future__ import annotations

from hora.ops.dialects import DIALECTS
from hora.ops.forms import make
from hora.tensorflow.compression import Compression, Compressor
from hora.tensorflow.forms import TensorFlowForms
from hora.tensorflow.surface import plainly

__all__ = make(
    DIALECTS["tensorflow"], TensorFlowForms(), __name__, public=plainly, Compression=Compression, Compressor=Compressor
)
