"""Files to predict from: written, read, refused; and a calibration that is really measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hora.bench.models import SPECS
from hora.bench.plan import BenchRow, ContenderTime, Result
from hora.errors import BadData, UsageError
from hora.files import write_json
from hora.predict import calibration
from hora.predict.calibrate import GRADIENT_BYTES, calibrate, calibration_of
from hora.predict.forecast import outlook

GOOD = {"compute_s": 0.2, "batch": 32, "gradient_bytes": 1e8, "per_host": 2}


def test_a_calibration_is_kept_and_read_again(tmp_path: Path) -> None:
    given = calibration.Calibration(**GOOD, between=calibration.LinkFacts(bytes_per_s=1e8), exposed=1.0, jitter=0.0)
    write_json(tmp_path / "here.json", given, "-o")
    basis = calibration.read(tmp_path / "here.json")
    # 1e8 bytes over the link, inside the host at the usual rate, and nothing hidden: 0.2 + 1 + 0.01
    assert basis.model.forecast(32, 4).step_s.middle == pytest.approx(1.21, rel=0.05)
    said = " ".join(basis.assumptions)
    assert "inside a host" in said and "between hosts" not in said and "hidden" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["here.json"]


def test_a_table_is_fitted(tmp_path: Path) -> None:
    rows = [{"batch": 16, "workers": n, "images_per_s": 100.0 * n**0.97} for n in (1, 2, 4)]
    table = {"rows": rows, "about": "mine", "priors": {"gradient_bytes": 4e7, "per_host": 4}}
    (tmp_path / "table.json").write_text(json.dumps(table))
    basis = calibration.read(tmp_path / "table.json")
    assert basis.about == "mine" and basis.model.setting.gradient_bytes == 4e7
    assert 0.85 < basis.model.forecast(16, 8).efficiency.middle < 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "truncated"),
        ("[1, 2", "truncated"),
        ("[1, 2]", "object"),
        (json.dumps(GOOD | {"batch": "many"}), "batch"),
        (json.dumps(GOOD | {"compute_s": -1}), "above 0"),
        (json.dumps(GOOD | {"exposed": 2}), "between 0 and 1"),
        (json.dumps(GOOD | {"speed": 1}), "speed"),
        (json.dumps({"rows": [{"batch": 1, "workers": 1}]}), "images_per_s"),
        (json.dumps({"rows": []}), "0 rows"),
        (json.dumps({"rows": [{"batch": 1, "workers": 0, "images_per_s": 3}]}), "0 or less"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(BadData, match=said):
        calibration.read(tmp_path / "bad.json")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        calibration.read(tmp_path / "none.json")


def test_a_run_takes_its_steps_and_accumulates() -> None:
    basis = calibration.basis_of_step(0.1, 8, gradient_bytes=1e6, per_host=4)
    once = outlook(basis, workers=1, batch=8, total_steps=100)
    assert once.run_s.middle == pytest.approx(10.0, rel=0.01)
    thrice = outlook(basis, workers=1, batch=8, accumulation=3, total_steps=100)
    assert thrice.run_s.middle == pytest.approx(30.0, rel=0.01)
    assert [row.workers for row in once.farther["ring"]] == [256, 1024, 4096]
    assert outlook(basis, workers=4096, batch=8, total_steps=1).farther["tree"] == ()


def result(bench: str, rows: list[BenchRow]) -> Result:
    return Result(bench=bench, np=4, command="", rows=rows, machine={"cpu": "a processor"}, versions={})


def timed(**micros: float) -> dict[str, ContenderTime]:
    return {name: ContenderTime(median_us=us, low_us=us, high_us=us, rounds=3) for name, us in micros.items()}


def test_a_calibration_has_what_the_benchmarks_found() -> None:
    """Four workers whose ring has 10 us a turn and 2 GB/s; ResNet-50 without jitter; half of its sum is hidden."""
    size = GRADIENT_BYTES["resnet50"]
    ring = 1e6 * 1.5 * size / 2e9 + 60
    moved = [
        BenchRow(name="4 B", bytes=4, cells=timed(hora=60.0)),
        BenchRow(name="16 MB", bytes=1 << 24, cells=timed(hora=60 + 1e6 * 1.5 * ((1 << 24) - 4) / 2e9)),
    ]
    trained = BenchRow(name="r", images=4, cells=timed(limit=3e5, hora=3e5 + ring / 2), added_us={"hora": ring / 2})
    found = calibration_of("resnet50", 4, result("allreduce", moved), result("train", [trained]))
    assert found.inside == calibration.LinkFacts(bytes_per_s=2e9, latency_s=1e-5)
    assert (found.compute_s, found.batch, found.per_host) == (0.3, 4, 4)
    assert found.exposed == pytest.approx(0.5, rel=1e-3) and found.jitter == 0.0
    # Asked for what was measured, a model of it says what was measured.
    model = calibration.model_of(found).model
    assert model.setting.algorithm == "hierarchical"
    assert model.forecast(4, 4).step_s.middle == pytest.approx(0.3 + ring / 2e6, rel=0.02)


def test_gradients_have_the_size_that_their_networks_have() -> None:
    for name, size in GRADIENT_BYTES.items():
        assert size == sum(4 * parameter.numel() for parameter in SPECS[name].make().parameters())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_this_machine_is_calibrated() -> None:
    """In a process of its own, as from the command line: it starts others, and reads their output."""
    code = "from hora.predict.calibrate import calibrate; import msgspec; "
    code += "print(msgspec.json.encode(calibrate('mnist', 2, rounds=2, round_s=0.02)).decode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=calibration.Calibration)
    assert found.batch == 64 and 0 < found.compute_s < 60
    assert found.inside is not None and found.inside.bytes_per_s > 1e6
    basis = calibration.model_of(found)
    assert "measured on" in basis.about and basis.model.forecast(64, 2).step_s.middle > 0


@pytest.mark.parametrize(("model", "np"), [("vgg", 2), ("mnist", 1)])
def test_what_cannot_be_calibrated_is_refused(model: str, np: int) -> None:
    with pytest.raises(UsageError, match="resnet50"):
        calibrate(model, np)
