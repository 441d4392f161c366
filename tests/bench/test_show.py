"""The tables: every figure is there, with colour or without, wide or narrow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hora.bench.launching import LABELS as LAUNCH_LABELS
from hora.bench.plan import BenchRow, Result, cell
from hora.bench.show import print_result


def result(**changes: object) -> Result:
    cells = {"hora": cell([2e-6]), "hora_shared": cell([2e-6]), "gloo": cell([200e-6]), "memcpy": cell([1e-6])}
    fields: dict[str, object] = {
        "bench": "allreduce", "np": 2, "command": "hora bench allreduce", "rows": [BenchRow(name="4 B", cells=cells)],
        "machine": {"cpu": "A processor [rev 2]", "cores": 2, "memory_bytes": 8 << 30, "python": "3.11"},
        "versions": {"hora": "0.1.0"}, "notes": ["mpi was not measured: no mpirun"],
    }  # fmt: skip
    return Result(**{**fields, **changes})  # type: ignore[arg-type]


def printed(what: Result, **console: object) -> str:
    out = io.StringIO()
    print_result(what, Console(file=out, **console))  # type: ignore[arg-type]
    return out.getvalue()


def test_a_log_has_no_escapes_and_no_folded_lines() -> None:
    text = printed(result())
    assert "\x1b" not in text
    [line] = [line for line in text.splitlines() if line.strip().startswith("4 B")]
    assert line.split() == ["4", "B", "2.00", "µs", "±0%", "2.00", "µs", "±0%", "200", "µs", "±0%", "1.00", "µs", "±0%",
                            "100x", "0.50x"]  # fmt: skip
    assert "Note: mpi was not measured" in text and "Open MPI" not in text.split("Note")[0]
    assert "A processor [rev 2]" in text  # not taken for markup


@pytest.mark.parametrize("width", [80, 100, 200])
def test_every_width_shows_every_ratio(width: int) -> None:
    text = printed(result(), width=width, force_terminal=True, no_color=True)
    assert "100x" in text and "0.50x" in text


def test_launch_has_its_own_columns() -> None:
    cells = {"bare": cell([1.0]), "hora": cell([1.05]), "added": cell([0.05])}
    text = printed(result(bench="launch", rows=[BenchRow(name="import", cells=cells)], labels=dict(LAUNCH_LABELS)))
    assert "added by Hora" in text and "50.0 ms" in text and "1.05 s" in text
