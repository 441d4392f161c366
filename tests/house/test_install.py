"""The package builds everywhere: with the C core where there is a compiler, as a pure wheel where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import hora

ROOT = Path(__file__).resolve().parents[2]
CORE = "hora/transport/_core.so"
TIMEOUT_S = 100

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a source distribution is made from, so that building leaves nothing in the work tree."""
    place = tmp_path_factory.mktemp("checkout")
    for name in ("src", "native"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        (place / name).write_bytes((ROOT / name).read_bytes())
    return place


def build(checkout: Path, out: Path, *arguments: str, **environment: str) -> tuple[Path, str]:
    """Build offline, with what is installed here; returns the file made and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *arguments, str(checkout)],
        env={**os.environ, "HORA_BUILD_CORE": "auto", "PIP_NO_INDEX": "1", **environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    [made] = out.iterdir()
    return made, done.stdout


def notes(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("hora: ")]


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def python_of_new_venv(place: Path, wheel: Path) -> Path:
    """A virtual environment with only the wheel in it; dependencies come from this one by a path file."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout.strip())
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=TIMEOUT_S)
    import msgspec

    (site / "dependencies.pth").write_text(str(Path(msgspec.__file__).parents[1]))
    return python


def run(python: Path, code: str, cwd: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HORA_"))}
    done = subprocess.run(
        [str(python), "-c", code], env=clean, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WHERE = "import hora, hora.errors, hora.cli.main; print(hora.__file__)"


def test_wheel_with_compiler_carries_the_core(checkout: Path, tmp_path: Path) -> None:
    wheel, output = build(checkout, tmp_path / "dist", "--wheel", HORA_BUILD_CORE="require")
    assert notes(output) == []
    assert wheel.name.startswith("hora-") and "-py3-none-linux" in wheel.name
    assert {CORE, "hora/py.typed", "hora/torch/collectives.pyi", "hora/cli/main.py"} <= names(wheel)
    python = python_of_new_venv(tmp_path / "env", wheel)
    assert run(python, WHERE, tmp_path).startswith(str(tmp_path))
    load = f"import ctypes, hora, os; ctypes.CDLL(os.path.dirname(hora.__file__) + '/../{CORE}'); print('loaded')"
    assert run(python, load, tmp_path) == "loaded"
    assert run(python, "import importlib.metadata as m; print(m.version('hora'))", tmp_path) == hora.__version__


@pytest.mark.parametrize("compiler", ["/bin/false", "/nonexistent/cc"])
def test_wheel_without_compiler_is_pure_and_says_so_in_one_line(checkout: Path, tmp_path: Path, compiler: str) -> None:
    wheel, output = build(checkout, tmp_path / "dist", "--wheel", CC=compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert len(notes(output)) == 1 and "without the C core" in notes(output)[0] and compiler in notes(output)[0]
    assert CORE not in names(wheel) and "hora/py.typed" in names(wheel)
    if compiler == "/bin/false":  # the other one is the same wheel
        python = python_of_new_venv(tmp_path / "env", wheel)
        assert run(python, WHERE, tmp_path).startswith(str(tmp_path))


def test_core_left_by_an_editable_install_stays_out_of_wheels(checkout: Path, tmp_path: Path) -> None:
    stale = checkout / "src" / CORE
    stale.write_bytes(b"left over")
    try:
        wheel, _ = build(checkout, tmp_path / "dist", "--wheel", HORA_BUILD_CORE="no")
        assert CORE not in names(wheel)
    finally:
        stale.unlink()


def test_required_core_that_does_not_compile_is_an_error(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="HORA_BUILD_CORE=require"):
        build(checkout, tmp_path / "dist", "--wheel", HORA_BUILD_CORE="require", CC="/bin/false")


def test_source_distribution_has_the_c_sources_and_no_binaries(checkout: Path, tmp_path: Path) -> None:
    sdist, _ = build(checkout, tmp_path / "dist", "--sdist")
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"native/{path.name}" for path in (ROOT / "native").glob("*.[ch]")} <= members
    assert not [name for name in members if name.endswith((".so", ".o"))]


def test_editable_install_compiles_into_the_source_tree(checkout: Path, tmp_path: Path) -> None:
    """`build_core` is what an editable install runs; asked for by itself it needs no environment to install into."""
    made = checkout / "src" / CORE
    command = [sys.executable, "-c", EDITABLE, str(tmp_path)]
    environment = {**os.environ, "HORA_BUILD_CORE": "require"}
    subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, timeout=TIMEOUT_S)
    try:
        assert made.stat().st_mode & 0o111
        assert [path for path in tmp_path.iterdir() if "editable" in path.name]
    finally:
        made.unlink()


EDITABLE = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
