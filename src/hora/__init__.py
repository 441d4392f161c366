"""Hora: Horovod's API for data-parallel training, a launcher, and a lab that tells whether it was worth it.

Importing this package costs next to nothing: ``run`` and the front-ends (``hora.torch``) are loaded when first used.
"""

from __future__ import annotations

from hora import errors as _errors
from hora.errors import *  # noqa: F403

TYPE_CHECKING = False  # typing's own would cost as much time as all the rest of this import
if TYPE_CHECKING:
    from typing import Any

    from hora.launch.function import run as run

__version__ = "0.1.0"

__all__ = ["__version__", "run", *_errors.__all__]


def __getattr__(name: str) -> Any:
    if name == "run":
        from hora.launch.function import run

        return run
    raise AttributeError(f"module 'hora' has no attribute {name!r}")
