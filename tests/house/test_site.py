"""The documentation site builds without a warning, its links lead somewhere, it has all of the public surface, and its
tutorials do what they say."""

from __future__ import annotations

import html.parser
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

import hora

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TIMEOUT_S = 110
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Page(html.parser.HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.ids |= {value for name in ("id", "name") if (value := values.get(name))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    if any(find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")):
        pytest.skip("Sphinx, furo or MyST is not installed: pip install -r requirements/docs.txt")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-d", str(out / "doctrees")]
    done = subprocess.run(
        [*command, str(DOCS), str(out / "html")], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.relative_to(out / "html").as_posix(): path for path in (out / "html").rglob("*") if path.is_file()}
    return {name: Page(path.read_text() if name.endswith(".html") else "") for name, path in files.items()}


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site: dict[str, Page]) -> None:
    broken = []
    for name, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            anchor = unquote(parts.fragment)
            if target not in site or (anchor and target.endswith(".html") and anchor not in site[target].ids):
                broken.append(f"{name}: {link}")
    assert broken == []


@pytest.mark.slow
def test_the_reference_has_every_public_name_and_command(site: dict[str, Page]) -> None:
    import hora.torch
    from hora import errors
    from hora.cli.main import _hora

    described = site["api/torch.html"].ids | {f"hora.torch.{name}" for name in errors.__all__}
    assert [name for name in hora.torch.__all__ if f"hora.torch.{name}" not in described] == []
    assert {f"hora.errors.{name}" for name in errors.__all__ if name[0].isupper()} <= site["api/errors.html"].ids
    context = click.Context(_hora)
    assert {f"hora-{name}" for name in _hora.list_commands(context)} <= site["cli.html"].ids
    assert {"searchindex.js", "search.html"} <= set(site)


def run(folder: Path, *command: str) -> tuple[int, str]:
    """A command of the tutorial, with this Python; what it printed, and its exit code."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, said


def test_the_first_run_does_what_the_tutorial_says(tmp_path: Path) -> None:
    for name, code in zip(
        ("train", "scaled", "broken"), CODE.findall((DOCS / "first-run.md").read_text()), strict=True
    ):
        (tmp_path / f"{name}.py").write_text(code)
    failed, alone = run(tmp_path, "train.py")
    steps = re.findall(r"epoch (\d): (\d+) steps, ([\d.]+)% right", alone)
    assert not failed and [(epoch, count) for epoch, count, _ in steps] == [("1", "128"), ("2", "128"), ("3", "128")]
    failed, said = run(tmp_path, "-m", "hora", "run", "-np", "2", sys.executable, "scaled.py")
    assert not failed, said
    mine, others = (re.findall(rf"\[{rank}\]<stdout>:epoch (\d): 64 steps, ([\d.]+)%", said) for rank in "01")
    assert mine == others and len(mine) == 3 and float(mine[-1][1]) > 80
    failed, said = run(tmp_path, "-m", "hora", "run", "-np", "2", sys.executable, "broken.py")
    assert failed == 1 and "MismatchError" in said and re.search(r"rank 1 .*broken\.py:6", said)


def test_the_horovod_script_runs(tmp_path: Path) -> None:
    [code] = CODE.findall((DOCS / "horovod-script.md").read_text())
    (tmp_path / "old.py").write_text(code)
    failed, said = run(tmp_path, "-m", "hora", "run", "--as-horovod", "-np", "2", sys.executable, "old.py")
    assert not failed, said
    assert float(re.findall(r"loss of 2 workers: ([\d.]+)", said)[0]) < 4  # of the sum of four squares, at the start


def test_citation_and_workflows_can_be_read() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install -r requirements/dev.txt")
    files = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    read = {path.name: yaml.safe_load(path.read_text()) for path in files}
    assert read["CITATION.cff"]["version"] == hora.__version__ and read["CITATION.cff"]["date-released"]
    assert all(read.values()) and ".ci/run" in json.dumps(read["ci.yml"])
    hooks = {hook["entry"].split()[0] for repo in read[".pre-commit-config.yaml"]["repos"] for hook in repo["hooks"]}
    assert hooks == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/lint-imports"}
