"""Elastic training: workers come and go, and the training continues from where it was.

``membership`` decides who is in (pure, in the launcher), ``gather`` carries it out at the hub, ``state`` and ``run``
are Horovod's API on the worker's side, ``tree`` sends a state to those who lack it, ``order`` says which samples are
left.
"""

from __future__ import annotations
