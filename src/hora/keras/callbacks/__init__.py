"""Callbacks for ``model.fit`` on many workers. Names and arguments are Horovod's; what differs is said in each.

Their order matters as in Keras: ``MetricAverageCallback`` goes before those that look at metrics.
"""

from hora.keras.callbacks.best_model import BestModelCheckpoint
from hora.keras.callbacks.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from hora.keras.callbacks.metrics import MetricAverageCallback
from hora.keras.callbacks.variables import BroadcastGlobalVariablesCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
