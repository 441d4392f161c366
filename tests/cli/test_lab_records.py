"""`hora lab list`, `show` and `compare` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from tests.lab.records.made_up import write_experiment, write_outcome, write_run
from tests.lab.report import samples

from hora.cli.main import main


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Hora(Protocol):
    def __call__(self, *words: str | Path) -> Said: ...


@pytest.fixture
def hora(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hora:
    monkeypatch.setenv("TZ", "UTC")

    def call(*words: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main(["lab", *map(str, words)])
        said = capsys.readouterr()
        assert all(len(line) <= 100 or len(line.split()) == 1 for line in said.out.splitlines()), said.out
        return Said(int(ended.value.code or 0), said.out, said.err)

    return call


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and "──" not in line]


def test_help_lists_all_without_importing_them(hora: Hora) -> None:
    said = hora("--help")
    assert said.code == 0
    for name in ("throughput", "scaling", "quality", "sweep", "study", "report", "list", "show", "compare"):
        assert f"  {name} " in said.out


def test_list_is_newest_first(hora: Hora, tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=0.975)
    write_experiment(tmp_path / "b")
    write_run(tmp_path / "c", state="failed", started="2026-03-03T10:00:00.000Z", emulated_workers=8, result={})
    said = hora("list", "--runs", tmp_path, "--json", tmp_path / "list.json")
    assert said.code == 0 and not said.err
    found = json.loads((tmp_path / "list.json").read_text())
    assert [(line["kind"], line["workers"], line["state"]) for line in found] == [
        ("run", "8 on 2", "failed"), ("scaling", "1-2", "done"), ("run", "2", "done"),
    ]  # fmt: skip
    assert found[1]["result"] == "efficiency 80 % on 2"
    assert found[2]["result"] == "accuracy 97.50 %"
    assert [line[2] for line in rows(said.out) if line[0].startswith("2026")] == ["run", "scaling", "run"]
    assert [line["kind"] for line in _listed(hora, tmp_path, "--kind", "scaling")] == ["scaling"]
    assert len(_listed(hora, tmp_path, "-n", "2")) == 2


def _listed(hora: Hora, runs: Path, *words: str) -> list[dict[str, str]]:
    hora("list", "--runs", runs, "--json", runs / "list.json", *words)
    found: list[dict[str, str]] = json.loads((runs / "list.json").read_text())
    return found


def test_a_list_with_long_words_fits_a_narrow_terminal(
    hora: Hora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is cut rather than the header broken; --json has it whole."""
    monkeypatch.setenv("COLUMNS", "80")
    write_experiment(tmp_path / "above", kind="a-kind-that-nobody-knows", rows=[{"workers": 12, "efficiency": 1.42}])
    write_run(tmp_path / "run")
    found = _listed(hora, tmp_path)
    said = hora("list", "--runs", tmp_path)
    assert found[0]["result"] == "above ideal (142 %) on 12: not comparable"
    lines = [line for line in said.out.splitlines() if not line.startswith("    /")]
    assert len(lines) == 3 and max(map(len, lines)) <= 80, said.out
    assert lines[0].split()[-1] == "result" and "above ideal" in said.out and "…" in said.out


def test_a_scaling_experiment_is_shown_as_it_was_told(hora: Hora, tmp_path: Path) -> None:
    said = hora("show", samples.scaling(tmp_path / "scaling", timeline=False))
    assert said.code == 0, said.err
    for text in ("mnist, weak scaling, 1 thread a worker", "speed-up", "limit", "From ideal to measured, 2 workers",
                 "Bottleneck: rank 1 is late.", "It takes 12 % of a step; gain: up to 11 %"):  # fmt: skip
        assert text in said.out, text
    assert "speed-up low" not in said.out and said.out.index("From ideal") < said.out.index("Bottleneck")
    assert "images/s: over the median step" in said.out


def test_throughput_and_quality_are_shown_as_they_were_told(hora: Hora, tmp_path: Path) -> None:
    said = hora("show", samples.throughput(tmp_path / "throughput"))
    assert said.code == 0 and "Best: 4 workers x 1 thread, batch" in said.out and "of it" in said.out, said.out
    said = hora("show", samples.quality(tmp_path / "quality"))
    assert said.code == 0 and "vs one" in said.out and "batch: of all workers" in said.out, said.out


def test_list_says_what_is_corrupt_and_the_rest(hora: Hora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text('{"workload"')
    monkeypatch.chdir(tmp_path)
    said = hora("list", "--runs", ".")
    assert said.code == 2 and "accuracy 90.00 %" in said.out and "not readable" in said.out
    assert "hora: bad/run.json is not a record of Hora" in said.err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "Nothing was run" in hora("list", "--runs", empty).out
    assert hora("list", "--runs", tmp_path / "nowhere").code == 2


def test_show_a_run(hora: Hora, tmp_path: Path) -> None:
    folder = write_outcome(write_run(tmp_path / "a", batch=17), step_s=[0.1] * 9, warmup_steps=5, memory_bytes=3 << 30)
    said = hora("show", folder, "--json", tmp_path / "a.json")
    assert said.code == 0
    pairs = {line.strip().partition("  ")[0]: line.strip().partition("  ")[2].strip() for line in said.out.splitlines()}
    assert said.out.startswith("mnist, 2 workers: done\n")
    assert pairs["batch"] == "17" and pairs["memory"] == "3 GB" and pairs["validation accuracy"] == "90.00 %"
    assert pairs["images/s"].startswith("900") and "9 steps, 5 before them left out" in pairs["images/s"]
    assert pairs["host"].endswith("Z80, CP/M 2") and pairs["cores"] == "1, 8 GB memory"
    assert pairs["started"].endswith("took 1 min 15 s")
    assert [line for line in rows(said.out) if line[:1] == ["2"]] == [["2", "1.50", "s", "0.5", "45.00", "%"]]
    assert json.loads((tmp_path / "a.json").read_text())["run"]["options"]["batch"] == 17


def test_show_a_failed_run_with_the_end_of_its_log(hora: Hora, tmp_path: Path) -> None:
    folder = write_outcome(write_run(tmp_path / "a", state="failed"), state="failed", error="the data ended [here]")
    (folder / "log.txt").write_text("".join(f"line {number}\n" for number in range(40)) + "[0]<stderr>: the end\n")
    said = hora("show", folder)
    assert said.code == 0 and "mnist, 2 workers: failed\nthe data ended [here]\n" in said.out
    assert "[0]<stderr>: the end" in said.out and "line 39" in said.out and "line 20" not in said.out


def test_show_a_run_whose_process_is_gone(hora: Hora, tmp_path: Path) -> None:
    said = hora("show", write_run(tmp_path / "a", state="running", pid=2**22 + 1, ended="", result={}))
    assert said.code == 0 and said.out.startswith("mnist, 2 workers: died\n")


def test_show_an_experiment(hora: Hora, tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "a")
    write_outcome(folder / "trials" / "w1")
    write_outcome(folder / "trials" / "w2", state="out of memory", error="MemoryError")
    said = hora("show", folder)
    assert said.code == 0 and said.out.startswith("scaling: mnist, weak: done\n")
    assert ["2", "32", "200", "80", "%", "done"] in rows(said.out)
    assert "The loader is slow." in said.out and "Gain: up to 25 %" in said.out and "the data is generated" in said.out
    assert "w2: out of memory: MemoryError" in said.out
    (folder / "trials" / "w1" / "outcome.json").write_text("{")
    said = hora("show", folder)
    assert said.code == 2 and "The loader is slow." in said.out and "w1/outcome.json is not a record" in said.err


def test_show_nothing(hora: Hora, tmp_path: Path) -> None:
    said = hora("show", tmp_path)
    assert said.code == 2 and f"hora: {tmp_path} is empty. Give the folder of a run" in said.err


def test_compare_runs(hora: Hora, tmp_path: Path) -> None:
    first = write_run(tmp_path / "a")
    second = write_run(tmp_path / "b", batch=64, images_per_s=1500.0, versions={"python": "3.11", "torch": "2.14.0"})
    said = hora("compare", first, second, "--json", tmp_path / "c.json")
    assert said.code == 0
    lines = rows(said.out)
    assert ["batch", "32", "64"] in lines and ["torch", "2.13.0", "2.14.0"] in lines
    assert ["images/s", "1,000", "1,500", "1.50"] in lines
    assert not any(line[0] in ("python", "lr", "out") for line in lines)
    assert lines.index(["batch", "32", "64"]) < lines.index(["images/s", "1,000", "1,500", "1.50"])
    assert {row["label"] for row in json.loads((tmp_path / "c.json").read_text())["differences"]} == {"batch", "torch"}
    same = hora("compare", first, first)
    assert same.code == 0 and "Nothing that is recorded differs" in same.out


def test_compare_experiments(hora: Hora, tmp_path: Path) -> None:
    first, second = write_experiment(tmp_path / "a"), write_experiment(tmp_path / "b", state="interrupted", rows=[
        {"workers": 2, "batch": 32, "efficiency": 0.6}])  # fmt: skip
    said = hora("compare", first, second)
    assert said.code == 0
    assert ["state", "done", "interrupted"] in rows(said.out)
    assert ["workers", "2:", "efficiency", "80", "%", "60", "%", "0.75"] in rows(said.out)
    assert ["workers", "1:", "efficiency", "90", "%", "-"] in rows(said.out)


def test_compare_what_cannot_be(hora: Hora, tmp_path: Path) -> None:
    first, second, third = (write_run(tmp_path / name) for name in "abc")
    (second / "run.json").write_text("")
    said = hora("compare", first, second, third)
    assert said.code == 2 and "b/run.json is not a record" in said.err and "1,000" in said.out
    said = hora("compare", first, second)
    assert said.code == 2 and "Fewer than two are left" in said.err
    assert "alone cannot be compared" in hora("compare", first).err
    said = hora("compare", first, write_experiment(tmp_path / "e"))
    assert said.code == 2 and "different kinds" in said.err
