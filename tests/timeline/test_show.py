"""The report fits the terminal it is printed on, and says what there is to say."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.timeline import traces
from tests.timeline.test_verdict import slow_rank, tiny
from tests.timeline.traces import Op

from hora.timeline import report, show


def printed(files: list[Path], width: int) -> str:
    made, out = report.make(files), io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    show.print_report(console, made.tracks, made.clocks, made.numbers, made.findings, made.notes)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("ops", [slow_rank(4, 2), tiny()], ids=["slow", "tiny"])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, ops: list[Op], width: int) -> None:
    ops = [o._replace(name=f"allreduce.{'module.' * 12}{o.name}[x]") for o in ops]
    files = [traces.hora(tmp_path / f"{r}.json", ops, r) for r in ops[0].arrivals]
    text = printed(files, width)
    assert max(map(len, text.splitlines())) <= width
    assert "Bottleneck" in text and "Change:" in text and "Slowest tensors" in text


def test_the_words(tmp_path: Path) -> None:
    files = [traces.hora(tmp_path / f"{r}.json", slow_rank(2, 1), r, 5 * r) for r in (0, 1)]
    text = printed(files, 200)
    assert "Bottleneck: rank 1 is late." in text
    assert (
        "The others wait for rank 1 40 % of the time. It is the last at 100 % of 8 operations, then by 40.0 ms" in text
    )
    assert "In 8 of 8 steps it is the one most waited for, 40.0 ms a step" in text
    assert "all ranks recorded the same arrivals" in text


def test_horovods_file_needs_no_others(tmp_path: Path) -> None:
    text = printed([traces.horovod(tmp_path / "t.json", slow_rank(4, 0), "0.15")], 100)
    assert "Horovod's timeline of 4 ranks, 1 file" in text and "rank 0 is late" in text
    assert "Missing" not in text
