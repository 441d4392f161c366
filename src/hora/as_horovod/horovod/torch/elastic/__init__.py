"""``horovod.torch.elastic``."""

from __future__ import annotations

from hora.torch.elastic import ObjectState, TorchState, run

from .sampler import ElasticSampler

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]
