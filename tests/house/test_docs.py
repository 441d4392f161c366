"""What the documents say is true: generated parts are current, links lead somewhere, named files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]*)(?:#[^)]*)?\)")
FILE = re.compile(r"`(?P<path>(?:src/hora|native|tests|bench|docs|examples)/[\w./*-]+\.\w+)`(?:, `(?P<name>\w+)`)?")


@pytest.mark.parametrize("script", ["docs/generate.py", "docs/stubs.py", "bench/readme.py"])
def test_generated_parts_are_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / script), "--check"], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link['path']}"
        for page in PAGES
        for link in LINK.finditer(page.read_text())
        if link["path"] and not (page.parent / link["path"]).exists()
    ]
    assert broken == []


def test_named_files_and_functions_exist() -> None:
    wrong = []
    for page in PAGES:
        for found in FILE.finditer(page.read_text()):
            files = list(ROOT.glob(found["path"]))
            if not files and not found["path"].startswith("bench/results/"):
                wrong.append(f"{page.name}: there is no {found['path']}")
            elif (name := found["name"]) and not re.search(rf"\b{name}\(", files[0].read_text()):
                wrong.append(f"{page.name}: {found['path']} has no {name}")
    assert wrong == []


def test_a_gradients_life_has_eight_steps_with_a_file_and_a_function_each() -> None:
    life = (ROOT / "ARCHITECTURE.md").read_text().split("## A gradient's life")[1].split("\n## ")[0]
    steps = re.split(r"^\d\. ", life, flags=re.MULTILINE)[1:]
    assert len(steps) == 8
    assert [step for step in steps if not any(found["name"] for found in FILE.finditer(step))] == []


def test_the_project_speaks_of_itself_alone() -> None:
    """No page names the place where it happens to be worked on."""
    assert [page.name for page in PAGES if re.search(r"/(?:work|root|opt|home)/", page.read_text())] == []


def test_version_is_in_one_place() -> None:
    import tomllib

    import hora

    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # it is read from hora
    assert f"## [{hora.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_code_in_the_documents_is_code() -> None:
    broken = []
    for page in PAGES:
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            try:
                compile(code, page.name, "exec")
            except SyntaxError as error:
                broken.append(f"{page.name}: {error}")
    assert broken == []


def test_the_recipes_for_training_run(tmp_path: Path) -> None:
    """The page is followed from top to bottom, by a worker alone with a small model."""
    import torch

    import hora.torch as hvd

    page = (ROOT / "docs" / "training.md").read_text()
    images = torch.randn(512, 8)
    names: dict[str, object] = {
        "dataset": torch.utils.data.TensorDataset(images, (images.sum(1) > 0).long()),
        "model": torch.nn.Linear(8, 2), "loss_of": torch.nn.functional.cross_entropy, "device": "cpu", "epoch": 3,
        "checkpoint": tmp_path / "checkpoint.pt",
    }  # fmt: skip
    try:
        for code in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            exec(compile(code, "docs/training.md", "exec"), names)
    finally:
        hvd.shutdown()
    assert (tmp_path / "checkpoint.pt").exists()
