"""What Hora reaches into TensorFlow for, besides its public interface: each with why."""

from __future__ import annotations

__all__ = ["could_possibly_record"]

# Whether any tape records. Why: without it every eager call prepares for a gradient that nobody wants, which takes most
# of its time.
try:
    from tensorflow.python.eager.record import could_possibly_record
except ImportError:

    def could_possibly_record() -> bool:
        return True
