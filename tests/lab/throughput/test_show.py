"""The table: every point a line, what is alike in no column, nothing cut off within a hundred columns."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from hora.lab.show import fitted
from hora.lab.throughput import show


def row(**more: Any) -> dict[str, Any]:
    facts = {
        "workers": 2, "batch": 128, "threads": 1, "transport": "auto", "images_per_s": 12345.6, "low": 12001.0,
        "high": 12888.0, "limit_images_per_s": 13000.0, "share_of_limit": 0.9497, "first_batch_s": 3.21,
        "images_per_s_study": 9876.0, "cpu_share": 0.97, "memory_mb": 1234.5, "state": "done",
    }  # fmt: skip
    return {**facts, **more}


def shown(rows: list[dict[str, Any]], width: int = 100) -> str:
    file = StringIO()
    Console(file=file, width=width).print(show.table(rows, "mnist: throughput"))
    return file.getvalue()


def test_figures_stand_in_their_columns() -> None:
    text = shown([row(workers=1, images_per_s=81.26), row(), row(transport="gloo", threads=2)])
    assert "12,346" in text and "12,001-12,888" in text and "95 %" in text and "9,876" in text and "gloo" in text
    assert "…" not in text and max(map(len, text.splitlines())) <= 100


def test_what_is_alike_has_no_column() -> None:
    assert "transport" not in shown([row(), row(batch=64)])


def test_a_point_that_failed_says_how() -> None:
    text = shown([row(), row(batch=512, state="out of memory", images_per_s=None)])
    assert "out of memory" in text


def test_columns_are_left_out_rather_than_figures_cut_off() -> None:
    rows = [row(workers=1, images_per_s=81.26), row(), row(transport="gloo", threads=2)]
    for width in (60, 80, 100):
        file = StringIO()
        console = Console(file=file, width=width)
        console.print(fitted(show.table(rows, "mnist"), console, show.EXPENDABLE))
        text = file.getvalue()
        assert "12,346" in text and "…" not in text and max(map(len, text.splitlines())) <= width
        assert ("no room for CPU" in text) == (width < 100)
