"""Job scripts: what ``hora submit`` writes and hands to the scheduler.

``order`` is what was asked for, checked; ``script`` writes the job script, with what differs between schedulers from
``slurm`` and ``pbs``; ``send`` submits it. The scripts need nothing else: they can be read, kept, changed and
submitted by hand.
"""

from __future__ import annotations

from hora.launch.submit.order import BatchJob
from hora.launch.submit.script import SCHEDULERS, render
from hora.launch.submit.send import Submitted, commands, send, write

__all__ = ["SCHEDULERS", "BatchJob", "Submitted", "commands", "render", "send", "write"]
