"""`make wheels`: builds what a release consists of into dist/, and tries each piece.

    python .ci/wheels.py               the source distribution, wheels for Linux on x86_64 and aarch64, and a pure one
    python .ci/wheels.py --here        only the source distribution and a wheel by this machine's compiler, without zig

Wheels are built from the source distribution, so that what is missing in it is noticed. Those for Linux are compiled
by zig against glibc 2.17 (``manylinux_2_17``) and checked by auditwheel. What can run here is installed into an
environment of its own, where no compiler can be found, and two workers must get the right sum; dependencies come from
the environment that runs this, by a path file. A wheel for another processor is only looked at.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = "hora/transport/_core.so"
GLIBC = "2.17"
MACHINES = ("x86_64", "aarch64")
TIMEOUT_S = 300

TWO_WORKERS = """
import sys, torch, hora, hora.torch as hvd
hvd.init()
total = hvd.allreduce(torch.arange(1000.0) + hvd.rank(), op=hvd.Sum, name="check")
assert hvd.size() == 2 and torch.equal(total, 2 * torch.arange(1000.0) + 1), total
assert hora.__file__.startswith(sys.prefix), hora.__file__
"""


def run(*command: str, **options: object) -> str:
    """Run a command, and return what it printed; end with that if it fails."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=TIMEOUT_S, **options,  # type: ignore[call-overload]
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{' '.join(command)}: exit code {done.returncode}")
    return str(done.stdout)


def build(kind: str, source: Path, out: Path, *settings: str, **environment: str) -> Path:
    """Build one file offline, with the tools of this environment."""
    with tempfile.TemporaryDirectory() as place:
        run(
            sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", place, *settings, str(source),
            env={**os.environ, "PIP_NO_INDEX": "1", **environment},
        )  # fmt: skip
        [made] = Path(place).iterdir()
        return Path(shutil.move(made, out / made.name))


def wheel_for(machine: str, source: Path, out: Path) -> Path:
    """A manylinux wheel. For x86_64, zig's own library does not know which instructions a processor has; gcc's does."""
    zig = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
    more = run("gcc", "-print-libgcc-file-name").strip() if machine == "x86_64" else ""
    tag = f"--plat-name=manylinux_{GLIBC.replace('.', '_')}_{machine}"
    wheel = build(
        "wheel", source, out, f"-C--build-option={tag}", HORA_BUILD_CORE="require", CC=zig, LDFLAGS=more
    )  # fmt: skip
    told = run(sys.executable, "-m", "auditwheel", "show", str(wheel))
    if f'consistent with the following platform tag: "{tag.partition("=")[2]}"' not in " ".join(told.split()):
        sys.exit(f"{wheel.name} needs a newer system than its name says:\n{told}")
    return wheel


def has_core(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return CORE in archive.namelist()


def check(made: Path, core: bool) -> None:
    """Install into a new environment without a compiler, and let two workers add."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, symlinks=True)
        python = f"{place}/bin/python"
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        found = {str(Path(spec.origin).parents[1]) for name in ("torch", "msgspec", "setuptools")
                 if (spec := find_spec(name)) and spec.origin}  # fmt: skip
        (site / "dependencies.pth").write_text("\n".join(sorted(found)))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HORA_", "PIP_"))}
        clean |= {"PATH": f"{place}/bin", "CC": "/no/compiler", "HORA_TRANSPORT": "shm" if core else "auto"}
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
        run(*pip, "--no-build-isolation", str(made), env=clean)
        installed = next(site.parents[1].rglob(CORE), None)
        if (installed is not None) is not core:
            sys.exit(f"{made.name}: the C core is {'missing' if core else 'there, which was not to be expected'}.")
        (Path(place) / "check.py").write_text(TWO_WORKERS)
        run(f"{place}/bin/hora", "run", "-np", "2", "python", "check.py", env=clean, cwd=place)
    print(f"{made.name}: installed without a compiler; two workers added over {'shared memory' if core else 'Gloo'}")


def main() -> None:
    options = argparse.ArgumentParser(description="build and check what a release consists of")
    options.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files; old ones are removed")
    options.add_argument("--here", action="store_true", help="only a wheel by this machine's compiler")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.glob("hora-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place:
        sdist = build("sdist", ROOT, given.out)
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        [source] = Path(place).iterdir()
        if given.here:
            check(build("wheel", source, given.out, HORA_BUILD_CORE="require"), core=True)
            return
        check(sdist, core=False)
        check(build("wheel", source, given.out, HORA_BUILD_CORE="no"), core=False)
        for machine in MACHINES:
            shutil.rmtree(source / "build", ignore_errors=True)
            wheel = wheel_for(machine, source, given.out)
            if machine == platform.machine():
                check(wheel, core=True)
            else:
                print(
                    f"{wheel.name}: compiled and looked at by auditwheel; not run, because this is {platform.machine()}"
                )


if __name__ == "__main__":
    main()
