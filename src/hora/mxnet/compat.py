"""What Hora changes in MXNet: each with why."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

__all__ = ["when_initialised"]


def when_initialised(parameter: Any, then: Callable[[list[Any]], None]) -> None:
    """Call ``then`` with the parameter's copies as soon as it has values, once.

    Why: Gluon gives many parameters their shape only when the first batch comes, and has no hook for it.
    """
    give_values = parameter._init_impl

    def give_and_tell(self: Any, *arguments: Any, **options: Any) -> None:
        give_values(*arguments, **options)
        self._init_impl = give_values  # initialised again, it is the user's to broadcast
        then(self.list_data())

    parameter._init_impl = types.MethodType(give_and_tell, parameter)
