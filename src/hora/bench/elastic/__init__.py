"""`hora bench elastic`: real kills, and how long training stands still for them; beside torchrun and torchft.

``worker`` trains and kills itself by plan, ``job`` runs workers of one contender and writes down when they finished
their steps, ``figures`` makes figures of that, ``result`` is the outcome with its table.
"""

from __future__ import annotations
