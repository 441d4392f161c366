"""Builds the C core; everything else about the package is in pyproject.toml.

The core (``native/*.c``) becomes ``hora/transport/_core.so``: a plain shared library that Hora loads with ctypes. It
knows nothing of CPython or of any framework, so its file name carries no Python tag and one wheel,
``py3-none-<platform>``, serves every Python and every torch. Beside it goes ``_alloc.so`` (``native/preload/*.c``), the
allocator that the launcher preloads into workers.

The build promises to succeed without a compiler. Where there is none, where it fails, or where the system is not Linux,
one line says so and the package is built without the core: a pure wheel, in which Gloo carries the data. The
environment variable ``HORA_BUILD_CORE`` changes that: ``require`` makes a missing core an error, ``no`` leaves it out.

It is a sub-command of setuptools' ``build``, so wheels, source distributions and editable installs (which leave the
library in ``src/hora/transport/``) all go through the one class below.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
TARGETS = {Path("hora/transport/_core.so"): "native", Path("hora/transport/_alloc.so"): "native/preload"}
# -ffp-contract=off: a fused multiply-add on one machine and not on another would make sums differ in the last bit.
COMPILE_FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-pthread",
)  # fmt: skip
LIBRARIES = ("-lm", "-ldl", "-lrt")
COMPILE_TIMEOUT_S = 300


class CoreNotBuilt(Exception):
    """Why there is no core, in words for one line."""


def compiler() -> list[str]:
    """The C compiler: ``CC`` from the environment, else the one Python was built with if it is here, else cc."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    built_with = shlex.split(sysconfig.get_config_var("CC") or "")
    return built_with if built_with and shutil.which(built_with[0]) else ["cc"]


def compile_library(output: Path, folder: str) -> None:
    """Compile all C files of a folder into one shared library at ``output``, or raise CoreNotBuilt.

    A library of an earlier build stays until there is a new one to take its place at once: somebody may be using it.
    """
    if not sys.platform.startswith("linux"):
        raise CoreNotBuilt(f"it needs Linux, this is {sys.platform}")
    sources = sorted((ROOT / folder).glob("*.c"))
    if not sources:
        raise CoreNotBuilt(f"there are no C sources in {folder}/")
    output.parent.mkdir(parents=True, exist_ok=True)
    # Compile beside the target and rename: a process that has the old library loaded keeps its own file.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".core-") as scratch:
        made = Path(scratch) / output.name
        extra = shlex.split(os.environ.get("CFLAGS", ""))
        command = [*compiler(), *COMPILE_FLAGS, *extra, f"-I{ROOT / 'native'}", *map(str, sources)]
        command += ["-o", str(made), *shlex.split(os.environ.get("LDFLAGS", "")), *LIBRARIES]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CoreNotBuilt(f"the C compiler did not run ({error})") from error
        sys.stderr.write(done.stderr if done.returncode == 0 or os.environ.get("HORA_BUILD_CORE") == "require" else "")
        if done.returncode != 0 or not made.exists():
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise CoreNotBuilt(f"'{shlex.join(compiler())}' failed with exit code {done.returncode}: {first.strip()}")
        made.chmod(0o755)
        made.replace(output)


class build_core(Command):
    """Compiles the C core into the build folder, or into the source tree for an editable install."""

    description = "compile the C core of the shared-memory transport"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("inplace", "i", "put the library into the source tree"),
    ]
    boolean_options: ClassVar[list[str]] = ["inplace"]

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.editable_mode = False  # set by setuptools for `pip install -e`
        self.inplace = False
        self.built = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def outputs(self) -> dict[Path, str]:
        """Where each library goes, and the folder of its sources."""
        if self.editable_mode or self.inplace:
            place = ROOT / "src"
        else:
            assert self.build_lib is not None
            place = Path(self.build_lib)
        return {place / target: folder for target, folder in TARGETS.items()}

    def run(self) -> None:
        wish = os.environ.get("HORA_BUILD_CORE", "auto")
        if wish not in ("auto", "require", "no"):
            raise SystemExit(f"HORA_BUILD_CORE is {wish!r}; it can be auto, require or no.")
        if wish == "no":
            self.leave_none()
            return
        try:
            for output, folder in self.outputs().items():
                compile_library(output, folder)
        except CoreNotBuilt as reason:
            self.leave_none()
            if wish == "require":
                raise SystemExit(f"hora: the C core was not built, and HORA_BUILD_CORE=require: {reason}.") from None
            print(
                f"hora: installing without the C core ({reason}); Hora will use Gloo, which is slower on one host. "
                "To have it, install a C compiler and then Hora again.",
                file=sys.stderr,
            )
        else:
            self.built = True

    def leave_none(self) -> None:
        for output in self.outputs():
            output.unlink(missing_ok=True)

    # What setuptools asks of every sub-command of build.
    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "native").rglob("*.[ch]"))]

    def get_outputs(self) -> list[str]:
        return [str(output) for output in self.outputs()] if self.built else []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class build_with_core(build):
    sub_commands: ClassVar = [*build.sub_commands, ("build_core", None)]


class wheel_of_any_python(bdist_wheel):
    """Tags the wheel by what is in it: py3-none-<platform> with the core, py3-none-any without."""

    def run(self) -> None:
        self.run_command("build_core")
        built = self.get_finalized_command("build_core").built
        self.root_is_pure = not built
        self.distribution.has_ext_modules = lambda: built  # what "install" asks to choose between purelib and platlib
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        if self.root_is_pure:
            return "py3", "none", "any"
        platform = self.plat_name or sysconfig.get_platform()
        return "py3", "none", platform.replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    setup(cmdclass={"build": build_with_core, "build_core": build_core, "bdist_wheel": wheel_of_any_python})
