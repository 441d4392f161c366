"""Elastic training with PyTorch: Horovod's names, with its meanings.

``state`` has TorchState and what takes care of its parts, ``sampler`` the sampler that knows what is left of an epoch.
"""

from __future__ import annotations

from hora.elastic.run import run
from hora.elastic.state import ObjectState, State
from hora.torch.elastic.sampler import ElasticSampler
from hora.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
