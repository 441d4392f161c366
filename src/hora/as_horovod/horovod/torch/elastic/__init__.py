"""``horovod.torch.elastic``: importable, so that a script which offers it as an option runs; using it is refused."""

from __future__ import annotations

from ...common.elastic import run_fn
from .sampler import ElasticSampler
from .state import TorchState

run = run_fn

__all__ = ["ElasticSampler", "TorchState", "run"]
