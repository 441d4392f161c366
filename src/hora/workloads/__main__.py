"""One worker of `hora train -np N`: ``python -m hora.workloads WORKLOAD OPTIONS_AS_JSON [--launcher-draws]
[--independent] [--by-turns] [--bf16-tried]``."""

from __future__ import annotations

import sys

import msgspec

from hora.workloads import options_of
from hora.workloads.start import train_here

if __name__ == "__main__":
    name, document, *flags = sys.argv[1:]
    sys.exit(
        train_here(
            msgspec.json.decode(document, type=options_of(name)),
            launcher_draws="--launcher-draws" in flags,
            independent="--independent" in flags,
            by_turns="--by-turns" in flags,
            bf16_tried="--bf16-tried" in flags,
        )
    )
