"""``horovod.torch.elastic.sampler``."""

from __future__ import annotations

from hora.torch.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
