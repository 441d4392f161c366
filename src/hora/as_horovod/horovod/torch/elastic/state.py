"""``horovod.torch.elastic.state``: not available yet."""

from __future__ import annotations

from ...common.elastic import ObjectState, Unavailable

__all__ = ["ModelStateHandler", "OptimizerStateHandler", "SamplerStateHandler", "StateHandler", "TorchState"]


class TorchState(ObjectState):
    """Refused when it is made."""


class StateHandler(Unavailable):
    """Refused when it is made."""


class ModelStateHandler(StateHandler):
    """Refused when it is made."""


class OptimizerStateHandler(StateHandler):
    """Refused when it is made."""


class SamplerStateHandler(StateHandler):
    """Refused when it is made."""
