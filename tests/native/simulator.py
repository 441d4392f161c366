"""Building and running the simulator of the C core (``native/sim``): the same sources, in an order of our choice.

The same programs also run on real threads, without the scheduler, under a sanitizer: ``build_stress``.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).resolve().parents[2] / "native"
_PROGRAMS = ("model.c", "program.c")
_COMMON = ("-g", "-std=gnu11", "-fno-pie", "-ffp-contract=off")
# The compiler calls the simulator at every atomic step and access to memory of the core, in place of its own sanitizer.
_LIBRARIES = ("-lpthread", "-ldl", "-lm")
_SEAM = ("-O1", "-fsanitize=thread", "-fno-builtin", "-w", "-include")


class NotBuilt(Exception):
    """The sources do not compile."""


def build(native: Path, output: Path, kept: Path | None = None) -> None:
    """Compile the simulator with the core's sources in ``native``. ``kept``: a folder with what was compiled before."""
    ours = [NATIVE / "sim" / name for name in (*_PROGRAMS, "simulate.c", "network.c")]
    seam = [*_COMMON, *_SEAM, str(NATIVE / "sim" / "seam.h")]
    wanted = [(source, seam) for source in sorted(native.glob("*.c"))]
    wanted += [(source, [*_COMMON, "-O2", "-DHORA_SIMULATED"]) for source in ours]
    _build(native, wanted, ["-g", "-no-pie"], _LIBRARIES, output, kept)


def build_crowd(output: Path) -> None:
    """Compile the core for many hosts in one process (``native/sim/crowd.c``), with sizes as they are."""
    seam = [*_COMMON, "-O2", "-w", "-DHORA_CROWD", "-include", str(NATIVE / "sim" / "seam.h")]
    wanted: list[tuple[Path, Sequence[str]]] = [(source, seam) for source in sorted(NATIVE.glob("*.c"))]
    wanted.append((NATIVE / "sim" / "crowd.c", [*_COMMON, "-O2", "-DHORA_CROWD"]))
    link = ["-g", "-no-pie", "-Wl,--wrap=close_abroad", "-Wl,--wrap=send_control"]
    _build(NATIVE, wanted, link, _LIBRARIES, output, None)


def crowd(program: Path, longest_wait_s: float = 300.0, **options: int) -> dict[str, Any]:
    """What a step cost so many hosts that agree. Of pairs the first is of the busiest host, the second the mean."""
    words = [word for name, number in options.items() for word in (f"--{name.replace('_', '-')}", str(number))]
    done = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=longest_wait_s)
    assert done.returncode == 0, f"{options}: {done.stdout} {done.stderr}"
    return dict(json.loads(done.stdout))


def build_core(native: Path, output: Path, kept: Path) -> None:
    """Compile the core as setup.py does, but of what was compiled before only what has changed."""
    setup = runpy.run_path(str(NATIVE.parent / "setup.py"))
    flags = [flag for flag in setup["COMPILE_FLAGS"] if flag != "-shared"]
    wanted = [(source, flags) for source in sorted(native.glob("*.c"))]
    _build(native, wanted, setup["COMPILE_FLAGS"], setup["LIBRARIES"], output, kept)


def _build(
    native: Path,
    wanted: Sequence[tuple[Path, Sequence[str]]],
    link: Sequence[str],
    libraries: Sequence[str],
    output: Path,
    kept: Path | None,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = kept or Path(scratch)
        folder.mkdir(exist_ok=True)
        headers = b"".join(path.read_bytes() for path in sorted([*native.glob("*.h"), *(NATIVE / "sim").glob("*.h")]))

        def compile_one(source: Path, flags: Sequence[str]) -> Path:
            of = hashlib.sha1(repr((source.name, flags)).encode() + headers + source.read_bytes()).hexdigest()
            made = folder / f"{of}.o"
            if not made.exists():
                _run([*_compiler(), *flags, f"-I{native}", "-c", str(source), "-o", str(made)])
            return made

        with ThreadPoolExecutor(2) as pool:
            objects = list(pool.map(lambda one: compile_one(*one), wanted))
        _run([*_compiler(), *link, *map(str, objects), "-o", str(output), *libraries])


def build_stress(native: Path, output: Path, sanitizer: str) -> None:
    """Compile the simulator's programs for real threads, with a sanitizer that ends them at what it finds."""
    sources = [*sorted(native.glob("*.c")), *(NATIVE / "sim" / name for name in (*_PROGRAMS, "stress.c"))]
    flags = ["-O1", "-DHORA_SIMULATED", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{native}"]
    one_mapping = ["-Wl,--wrap=hora_map", "-Wl,--wrap=hora_unmap"]
    _run(
        [
            *_compiler(),
            *_COMMON[:2],
            "-ffp-contract=off",
            *flags,
            *map(str, sources),
            "-o",
            str(output),
            *one_mapping,
            *_LIBRARIES,
        ]
    )


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise NotBuilt(done.stderr)


def simulate(
    simulator: Path, seconds: int, seed: int, *more: str, longest_wait_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run it: exit code 0 if nothing was found; what was found is printed with the command that repeats it."""
    return subprocess.run(
        [str(simulator), "--seconds", str(seconds), "--seed", str(seed), *more],
        capture_output=True, text=True, timeout=seconds + longest_wait_s,
    )  # fmt: skip
