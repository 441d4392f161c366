"""The README is short and has one table; what says nothing certain is shown neither in it nor in the benchmarks."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from hora.bench.elastic.result import ElasticFigure, ElasticResult, Line
from hora.bench.plan import BenchRow, ContenderTime, Result

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 1 << 30, "python": "3.11"}


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in ("readme", "chart"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("readme")


def cell(us: float, spread: float = 0.1) -> ContenderTime:
    return ContenderTime(median_us=us, low_us=us * (1 - spread), high_us=us * (1 + spread), rounds=21)


def result(bench: str, *rows: BenchRow) -> Result:
    labels = {"limit": "limit", "hora": "Hora", "gloo": "Gloo", "ddp": "DDP"}
    return Result(bench=bench, np=2, command="hora bench", rows=list(rows), machine=MACHINE, versions={}, labels=labels)


def test_the_readme_is_short_and_has_one_table_or_two() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(re.findall(r"^\| --- ", text, re.MULTILINE)) <= 2
    assert text.split("## Read on")[1].count("\n- ") == 5


def test_the_readme_has_the_main_lines_of_elastic_jobs_and_says_if_they_are_not_measured(
    readme: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    slot = "<!-- bench:elastic-3-short -->\n<!-- /bench -->\n"
    assert "Not measured yet: `make bench`" in readme.filled(slot)
    recovery = {"hora": ElasticFigure(value=0.03, p99=0.05, count=12), "torchft": ElasticFigure(value=2.0, count=3)}
    measured = ElasticResult(
        np=3, command="hora bench elastic", machine=MACHINE,
        versions={"hora": "1", "torch": "2", "torchft": "torchft 3"},
        lines=[Line(name="kill to step", unit="s", figures=recovery), Line(name="more", unit="s", figures=recovery)],
    )  # fmt: skip
    (tmp_path / "elastic-3.json").write_bytes(msgspec.json.encode(measured))
    lines = readme.filled(slot).splitlines()
    assert lines[1:4] == [
        "|  | Hora | torchft |", "| --- | ---: | ---: |", "| kill to step | 30 ms / 50 ms (12) | 2.0 s (3) |"
    ]  # fmt: skip
    assert "Hora 1, torch 2, torchft 3" in lines[5] and lines[6] == "<!-- /bench -->"


def test_figures_that_vary_are_not_shown(readme: ModuleType) -> None:
    rows = [
        BenchRow(name="4 B", cells={"hora": cell(2.0, 0.31), "gloo": cell(200.0)}),
        BenchRow(name="1 MB", cells={"hora": cell(50.0, 0.29), "gloo": cell(500.0, 0.3)}),
    ]
    lines = readme.markdown(result("allreduce", *rows)).splitlines()
    assert lines[2:4] == ["| 4 B | **varies** | 200 µs ±10% |  |", "| 1 MB | **50.0 µs ±29%** | 500 µs ±30% | 10x |"]
    picture = readme.chart.svg(result("allreduce", *rows))
    assert "2.00 µs" not in picture and "varies" in picture and "50.0 µs" in picture


def test_what_is_above_the_limit_is_not_shown(readme: ModuleType) -> None:
    cells = {"limit": cell(100e3), "hora": cell(90e3), "ddp": cell(200e3)}
    row = BenchRow(name="net", images=10, cells=cells, shares={"limit": 1.0, "hora": 1.1, "ddp": 0.5})
    assert readme.markdown(result("train", row)).splitlines()[2] == "| net | 100/s | **varies** | 50.0/s (50 %) |"


def test_between_hosts_a_line_is_a_contender(readme: ModuleType) -> None:
    """And what is above in step, or the floor, is not shown either."""
    cells = {"limit": cell(100e3), "in_step": cell(105e3), "hora": cell(104e3), "ddp": cell(200e3, 0.4)}
    found = result("train", BenchRow(
        name="net", images=10, cells=cells, shares={"limit": 1.0, "in_step": 0.95, "hora": 0.96, "ddp": 0.5},
        versus={"hora/in_step": 1.01, "hora/ddp": 1.9}, floors_us={"float32": 105e3},
    ))  # fmt: skip
    found.labels |= {"in_step": "in step"}
    found.link_mbit_per_s = 1000.0
    told = dict(line.strip("| ").split(" | ") for line in readme.markdown(found).splitlines()[2:12] if "|" in line)
    assert told["Hora"].startswith("**104 ms ±10%") and told["DDP"] == "varies" and told["floor"] == "105 ms"
    assert told["Hora / in step"] == told["Hora / DDP"] == told["Hora / floor"] == "varies"
