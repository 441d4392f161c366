"""The collectives of ``hora.jax``: its forms in ``ops.table``, made from it. The stub beside has their types."""

from __future__ import annotations

import jax

from hora.jax.compression import Compression, Compressor
from hora.jax.forms import JaxForms
from hora.ops.dialects import DIALECTS
from hora.ops.forms import make

__all__ = make(DIALECTS["jax"], JaxForms(), __name__, jax=jax, Compression=Compression, Compressor=Compressor)
