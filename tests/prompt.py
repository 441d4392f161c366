"""How long tests wait for what happens at once on a quiet machine: a death that is told, a circle that is seen, a
process that ends. It only has to be less than the time after which something else would tell, a stall 20 s. What a user
is promised, a second, is measured by `tests/chaos`, as a median: a machine may have other things to do.
"""

from __future__ import annotations

PROMPT_S = 15.0
