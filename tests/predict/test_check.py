"""The acceptance: fitted on rows of up to 8 GPUs, the model predicts those at 16, 24 and 32, and knows how well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hora.predict import check, published
from hora.predict.fit import FitRow, fit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checked() -> list[check.Checked]:
    return check.check()


def test_fifteen_rows_that_the_model_never_saw(checked: list[check.Checked]) -> None:
    raw = {
        (row["framework"], row["batch_per_gpu"], row["gpus"]): row["images_per_sec"]
        for table in published.tables()["thesis"]["tables"].values()
        if table["kind"] == "throughput"
        for row in table["rows"]
        if row["gpus"] in (16, 24, 32)
    }
    assert {(row.framework, row.batch, row.workers): row.published for row in checked} == raw and len(raw) == 15
    errors = [abs(row.predicted.middle - raw[row.framework, row.batch, row.workers]) / row.published for row in checked]
    inside = [row.predicted.low <= raw[row.framework, row.batch, row.workers] <= row.predicted.high for row in checked]
    assert np.mean(errors) <= 0.06
    assert sum(inside) >= 12 and sum(inside) == check.held(checked)
    # An interval that holds everything says nothing.
    assert max(row.predicted.high / row.predicted.low for row in checked) < 1.25


def test_the_page_says_what_the_model_says(checked: list[check.Checked]) -> None:
    page = (ROOT / "docs" / "predict.md").read_text().split("## Checked against")[1].split("\n(Predicted over")[0]
    said = [float(figure) for figure in re.findall(r"([+-]\d+\.\d) %", page)]
    assert said == pytest.approx([100 * row.error for row in checked], abs=0.5)  # processors round differently
    bold = [float(figure) for figure in re.findall(r"\*\*([+-]\d+\.\d) %\*\*", page)]
    assert bold == pytest.approx(
        [100 * row.error for row in checked if not row.predicted.holds(row.published)], abs=0.5
    )
    [mean] = re.findall(r"\*\*(\d+\.\d) %\*\*,\nand", page)
    assert float(mean) == pytest.approx(100 * np.mean([abs(row.error) for row in checked]), abs=0.2)
    assert f"**{check.held(checked)} of the 15**" in page


def test_larger_rows_have_no_part_in_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands there, the same rows are fitted, with the same first batches."""
    seen: list[Any] = []

    def spy(rows: list[FitRow], **options: Any) -> None:
        seen.append((rows, options["first"]))

    monkeypatch.setattr(check, "fit", spy)
    check.fit_study("pytorch")
    real, first = published.throughput, published.first_batch
    monkeypatch.setattr(published, "throughput", lambda name: [row for row in real(name) if row.workers <= 8])
    monkeypatch.setattr(published, "first_batch", lambda name: {n: s for n, s in first(name).items() if n <= 8})
    check.fit_study("pytorch")
    assert seen[0] == seen[1] and [row.workers for row in seen[0][0]] == [1, 2, 4, 8]
    assert max(seen[0][1].seconds) == 2


def test_the_first_batch_of_one_worker_is_what_its_log_says() -> None:
    """Batch 0 is what is left of 200 averages when 199 steady steps are taken away."""
    first = check._first_batch("pytorch", 8)
    assert first is not None and first.seconds[1] == pytest.approx(200 * 0.633 - 199 * 0.581)
    assert check._first_batch("horovod+tensorflow", 8) is None


def test_a_table_made_by_known_parameters_is_predicted() -> None:
    """Two batch sizes, hosts of 4, PCI Express and FDR, half of communication hidden, no scatter."""
    from tests.predict.test_network import walk

    from hora.predict.network import Cluster, Link
    from hora.predict.step import expected_max

    def row(batch: int, workers: int) -> FitRow:
        compute = 0.03 + 0.004 * batch
        comm = walk(102e6, Cluster(workers, 4), Link(9e9, 8e-5), Link(4e9, 8e-5)) if workers > 1 else 0.0
        step = compute * (1 + 0.01 * expected_max(workers)) + 0.5 * comm
        return FitRow(batch, workers, batch * workers / step)

    model = fit([row(batch, workers) for batch in (32, 128) for workers in (1, 2, 4, 8)])
    for batch in (32, 128):
        for workers in (16, 32):
            truth = row(batch, workers).images_per_s
            found = model.images_per_s(batch, workers)
            assert found.holds(truth) and found.middle == pytest.approx(truth, rel=0.03)
