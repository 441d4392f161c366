"""Compression: fewer bytes for a gradient than it has.

Two kinds. ``none``, ``fp16`` and ``bf16`` are classes without memory (``ops.compression``): they change the element
type and every collective that takes ``compression=`` takes them. The others are objects with a memory (``feedback``):
what they leave out of one step they add to the next. They work on named gradients only: give one to
``DistributedOptimizer``, of any framework, or call ``reduce_gradients`` after ``backward``.

===============  ====================  ==========================================  ===================
compressor       file                  what a tensor of n elements becomes         bytes, of float32
===============  ====================  ==========================================  ===================
``power_sgd``    ``power_sgd``         two thin matrices of ``rank`` columns       rows + columns
``top_k``        ``top_k``             the ``ratio · n`` largest, and where        8 · ratio · n
``one_bit``      ``one_bit``           a sign each, and the mean magnitude         n / 8
``int8``         ``int8``              a whole number each, a scale for 1024       n
===============  ====================  ==========================================  ===================

PowerSGD is summed on its way, as uncompressed gradients are. The others are gathered: each worker receives everybody's,
so what they save is eaten up again by about twice as many workers as they save times (64 for ``one_bit``). All of them
cost arithmetic, several passes over every gradient: they pay where bytes are dear, between hosts, and not in shared
memory. A gradient that arrives late wants shorter steps: begin with a lower learning rate than without them, and let it
fall toward the end.
"""

from __future__ import annotations

from hora.ops import compression
from hora.ops.compression import Compressor, GradientCompressor, NoneCompressor
from hora.torch.compression.cast import TORCH_ELEMENT
from hora.torch.compression.feedback import ErrorFeedback
from hora.torch.compression.gradients import reduce_gradients
from hora.torch.compression.int8 import Int8
from hora.torch.compression.one_bit import OneBit
from hora.torch.compression.power_sgd import PowerSGD
from hora.torch.compression.top_k import TopK

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "ErrorFeedback",
    "FP16Compressor",
    "GradientCompressor",
    "Int8",
    "NoneCompressor",
    "OneBit",
    "PowerSGD",
    "TopK",
    "reduce_gradients",
]


class Compression(compression.Compression, element=TORCH_ELEMENT):
    """The compressors to choose from.

    >>> import torch
    >>> smaller, context = Compression.bf16.compress(torch.ones(2))
    >>> smaller.dtype, Compression.bf16.decompress(smaller, context).dtype
    (torch.bfloat16, torch.float32)

    Those with a memory are made first:

    >>> Compression.power_sgd(rank=4)
    PowerSGD(rank=4, start_step=0)
    """

    power_sgd = PowerSGD
    top_k = TopK
    one_bit = OneBit
    int8 = Int8


FP16Compressor, BF16Compressor = Compression.fp16, Compression.bf16
