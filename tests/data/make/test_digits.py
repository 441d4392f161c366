"""Generated digits: MNIST's files, the same bytes from the same seed, neither trivial nor hopeless."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hora.data.generated import generated_facts
from hora.data.idx import read_idx
from hora.data.make.digits import PART, draw_digits, make_digits
from hora.errors import UsageError


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_they_are_mnists_files(tmp_path: Path) -> None:
    made = make_digits(tmp_path / "digits", samples=300, test=40, seed=7)
    shapes = {name: read_idx(made.folder / name).shape for name in sorted(files(made.folder)) if "idx" in name}
    assert shapes == {
        "t10k-images-idx3-ubyte": (40, 28, 28), "t10k-labels-idx1-ubyte": (40,),
        "train-images-idx3-ubyte": (300, 28, 28), "train-labels-idx1-ubyte": (300,),
    }  # fmt: skip
    facts = generated_facts(made.folder)
    assert facts is not None and (facts["generator"], facts["seed"], facts["samples"]) == ("digits", 7, 300)
    train, test = (read_idx(made.folder / f"{name}-images-idx3-ubyte") for name in ("train", "t10k"))
    assert len(np.unique(np.concatenate([train, test]).reshape(340, -1), axis=0)) == 340  # no image twice


def test_the_same_seed_gives_the_same_bytes_by_any_number_of_processes(tmp_path: Path) -> None:
    one, two, other = (
        files(make_digits(tmp_path / f"{seed}-{jobs}", samples=PART + 1, test=2, seed=seed, jobs=jobs).folder)
        for seed, jobs in ((1, 1), (1, 2), (2, 1))
    )
    assert one == two
    assert all(one[name] != other[name] for name in one)


def test_fewer_are_the_first_of_more(tmp_path: Path) -> None:
    few, many = (make_digits(tmp_path / str(n), samples=n, test=10).folder for n in (30, 300))
    images = [read_idx(folder / "train-images-idx3-ubyte") for folder in (few, many)]
    np.testing.assert_array_equal(images[0], images[1][:30])


def test_they_can_be_learned_but_not_by_looking_once() -> None:
    parts = [draw_digits(28, 3, 0, number) for number in range(7)]
    images = np.concatenate([part[0] for part in parts]).reshape(7 * PART, -1).astype(np.float32) / 255
    labels = np.concatenate([part[1] for part in parts])
    assert np.bincount(labels, minlength=10).min() > 0.07 * len(labels)
    cut = 6 * PART
    # The mean image of each digit tells many of them; the nearest of the others nearly all.
    means = np.stack([images[:cut][labels[:cut] == digit].mean(axis=0) for digit in range(10)])
    by_mean = _nearest(images[cut:], means)
    by_neighbour = labels[:cut][_nearest(images[cut:], images[:cut])]
    assert 0.5 < (by_mean == labels[cut:]).mean() < 0.93
    assert (by_neighbour == labels[cut:]).mean() > 0.75


def _nearest(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    return ((others**2).sum(axis=1) - 2 * some @ others.T).argmin(axis=1)


def test_other_sizes(tmp_path: Path) -> None:
    made = make_digits(tmp_path / "digits", samples=5, test=2, size=40)
    assert read_idx(made.folder / "train-images-idx3-ubyte").shape == (5, 40, 40)


@pytest.mark.parametrize(("wrong", "said"), [({"samples": 0}, "0 samples"), ({"size": 4}, "size=4")])
def test_wrong_numbers_are_refused(tmp_path: Path, wrong: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_digits(tmp_path / "digits", **wrong)
    assert list(tmp_path.iterdir()) == []
