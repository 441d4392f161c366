"""The collectives of ``hora.keras``: its forms in ``ops.table``, made from it. The stub beside has their types."""

from __future__ import annotations

from hora.keras.forms import ValueForms
from hora.ops.dialects import DIALECTS
from hora.ops.forms import make

__all__ = make(DIALECTS["keras"], ValueForms(), __name__)
