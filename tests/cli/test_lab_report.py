"""`hora lab report` as it is typed: exit codes, what is printed, and the rest of a report when something is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.report import samples

from hora.cli.main import main
from hora.lab.report import render


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["lab", "report", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn, and how, is tested elsewhere."""
    monkeypatch.setattr(render, "draw", lambda figures, folder: [folder / f"{figure.name}.svg" for figure in figures])


def test_a_page_is_written_and_the_answer_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.scaling(tmp_path / "runs" / "scaling", timeline=False)
    page = tmp_path / "new" / "page.html"
    assert run(str(tmp_path / "runs"), "-o", str(page), "--title", "Two <workers>") == 0
    said = capsys.readouterr().out
    assert said.startswith("2 workers: 1.90 times the speed of one") and f"Wrote {page} and " in said
    text = page.read_text()
    assert "<title>Two &lt;workers&gt;</title>" in text and "What could not be read" not in text
    assert "https://" not in text.partition("<main>")[0]


def test_what_is_broken_is_named_and_the_rest_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.scaling(tmp_path / "scaling", timeline=False)
    (tmp_path / "scaling" / "trials" / "1w-b64-t1-auto-1" / "outcome.json").write_text("{")
    page = tmp_path / "page.html"
    assert run(str(tmp_path / "scaling"), str(tmp_path / "nowhere"), "-o", str(page)) == 2
    said = capsys.readouterr().err
    assert "outcome.json" in said and "nowhere is not there" in said and "Traceback" not in said
    assert "What could not be read" in page.read_text() and "1.90 times" in page.read_text()


def test_without_arguments_it_is_of_the_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.scaling(tmp_path / "runs" / "scaling", timeline=False)
    monkeypatch.chdir(tmp_path)
    assert run() == 0 and "1.90 times" in (tmp_path / "report.html").read_text()


def test_nothing_to_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    page = tmp_path / "page.html"
    assert run(str(tmp_path / "empty"), "-o", str(page)) == 2
    assert "holds no run and no experiment" in capsys.readouterr().err and not page.exists()
    assert run("-o", str(page)) == 2


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.run(tmp_path / "run")
    (tmp_path / "file").touch()
    assert run(str(tmp_path / "run"), "-o", str(tmp_path / "file" / "page.html")) == 2
    assert "cannot be written" in capsys.readouterr().err
