"""Building and running the simulator of the C core (``native/sim``): the same sources, in an order of our choice."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"
_COMMON = ("-g", "-std=gnu11", "-fno-pie", "-ffp-contract=off")
# The compiler calls the simulator at every atomic step and access to memory of the core, in place of its own sanitizer.
_SEAM = ("-O1", "-fsanitize=thread", "-fno-builtin", "-w", "-include")


class NotBuilt(Exception):
    """The sources do not compile."""


def build(native: Path, output: Path) -> None:
    """Compile the simulator with the core's sources in ``native``."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as scratch:

        def compile_one(source: Path) -> Path:
            made = Path(scratch) / f"{source.parent.name}-{source.stem}.o"
            if source.parent.name == "sim":
                flags = ["-O2", "-DHORA_SIMULATED"]
            else:
                flags = [*_SEAM, str(NATIVE / "sim" / "seam.h")]
            _run([*compiler, *_COMMON, *flags, f"-I{native}", "-c", str(source), "-o", str(made)])
            return made

        sources = [*sorted(native.glob("*.c")), *sorted((NATIVE / "sim").glob("*.c"))]
        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(compile_one, sources))
        _run([*compiler, "-g", "-no-pie", *map(str, objects), "-o", str(output), "-lpthread", "-ldl", "-lm"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise NotBuilt(done.stderr)


def simulate(
    simulator: Path, seconds: int, seed: int, *more: str, patience_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run it: exit code 0 if nothing was found; what was found is printed with the command that repeats it."""
    return subprocess.run(
        [str(simulator), "--seconds", str(seconds), "--seed", str(seed), *more],
        capture_output=True, text=True, timeout=seconds + patience_s,
    )  # fmt: skip
