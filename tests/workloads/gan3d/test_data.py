"""Showers as the networks get them: small cells cut off, energies scaled, files divided; every event some worker's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hora.data.showers import write_showers
from hora.errors import BadData
from hora.workloads.gan3d.data import load
from hora.workloads.gan3d.options import Options
from hora.workloads.order import SampleOrder


def write(folder: Path, files: int, events: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(files):
        cells = rng.random((events, 25, 25, 25), np.float32) * np.float32(3e-6)
        energy = np.arange(events, dtype=np.float32) + 100 * (number + 1)
        write_showers(folder / f"EleEscan_{number:02}.h5", cells, energy)


def test_events_are_prepared_as_upstream_does(tmp_path: Path) -> None:
    write(tmp_path, 2, 3)
    data = load(tmp_path, events=6, xscale=100.0)
    batch = data.train.batch(np.array([2, 0]))
    assert batch.showers.shape == (2, 1, 25, 25, 25)
    stored = np.random.default_rng(0).random((3, 25, 25, 25), np.float32) * np.float32(3e-6)
    expected = np.where(stored < 1e-6, 0, stored)[[2, 0]] * 100
    np.testing.assert_allclose(batch.showers[:, 0].numpy(), expected, rtol=1e-6)
    assert 0.3 < (batch.showers == 0).float().mean() < 0.4
    np.testing.assert_allclose(batch.ecal.numpy(), expected.sum((1, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(batch.energy.numpy(), [1.02, 1.0], rtol=1e-6)
    assert not data.generated


def test_files_are_taken_until_there_are_enough_events_and_divided(tmp_path: Path) -> None:
    write(tmp_path, 12, 2)
    data = load(tmp_path, events=19)
    assert [len(part.files) for part in (data.train, data.test)] == [9, 1]  # ten files have 20 events
    assert len(data.train) == 18 and data.test.energy_gev.tolist() == [1000.0, 1001.0]
    with pytest.raises(BadData, match="cannot be divided"):
        load(tmp_path, events=2)
    with pytest.raises(BadData, match="there is no folder"):
        load(tmp_path / "elsewhere", events=2)


def test_an_epoch_is_shuffled_and_every_event_is_one_workers() -> None:
    """What upstream did not do: its workers all took the same first part, in the same order, in every epoch."""
    options = Options.of({"batch": 4})
    orders = []
    for epoch in range(2):
        order = SampleOrder(48, 3, options)
        shares = [np.concatenate([p.indices for p in order.plans(range(w, w + 1), epoch=epoch)]) for w in range(3)]
        together = np.concatenate(shares)
        assert sorted(together.tolist()) == list(range(48))
        orders.append(together.tolist())
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])


def test_a_pattern_of_files_is_enough(tmp_path: Path) -> None:
    write(tmp_path, 4, 2)
    data = load(tmp_path / "Ele*_0[012].h5", events=100)
    assert [path.name for part in (data.train, data.test) for path in part.files] == [
        f"EleEscan_0{number}.h5" for number in range(3)
    ]
    with pytest.raises(BadData, match=r"no file is called .*Pi\*\.h5"):
        load(tmp_path / "Pi*.h5", events=100)
