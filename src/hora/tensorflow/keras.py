"""``hora.tensorflow.keras`` is ``hora.keras``, under the name that scripts for ``tf.keras`` look for."""

from hora.keras import *  # noqa: F403
from hora.keras import __all__ as __all__
