"""Optimizers for large batches that torch does not have: LARS and LAMB."""

from hora.torch.optim.lamb import LAMB
from hora.torch.optim.lars import LARS

__all__ = ["LAMB", "LARS"]
