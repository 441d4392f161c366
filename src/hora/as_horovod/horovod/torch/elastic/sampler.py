"""``horovod.torch.elastic.sampler``: not available yet."""

from __future__ import annotations

from ...common.elastic import Unavailable

__all__ = ["ElasticSampler"]


class ElasticSampler(Unavailable):
    """Refused when it is made."""
