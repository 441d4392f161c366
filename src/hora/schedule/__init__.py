"""Learning rates for many workers: one plan, for every framework."""

from hora.schedule.decay import Decay, parse_decay
from hora.schedule.momentum import MomentumCorrection
from hora.schedule.plan import LearningRatePlan, Rule
from hora.schedule.warmup import Warmup, parse_warmup

__all__ = ["Decay", "LearningRatePlan", "MomentumCorrection", "Rule", "Warmup", "parse_decay", "parse_warmup"]
