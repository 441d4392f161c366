"""The whole loop on a few small pictures: it learns them, tells and keeps what the study's scripts did, and goes on to
the bit."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.launch.jobs import run_hora

from hora.data import jpeg
from hora.errors import BadData, UsageError
from hora.workloads.imagenet.options import Options
from hora.workloads.imagenet.train import train
from hora.workloads.start import train_here

SMALL: dict[str, Any] = {
    "arch": "resnet18", "batch": 16, "image_size": 32, "resize": 36, "loaders": 1, "lr": 0.02, "base_batch": 32,
    "decay": "none", "log_every": 4,
}  # fmt: skip


def flags(**options: Any) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of two workers, and what it printed."""
    out = tmp_path_factory.mktemp("run")
    options = SMALL | {"data": pictures, "out": out, "epochs": 3, "json": out / "final.json"}
    done = run_hora("train", "imagenet", "-np", "2", "--zero-gamma", *flags(**options), timeout_s=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def test_two_workers_learn_to_tell_them_apart(trained: tuple[Path, str]) -> None:
    final = json.loads((trained[0] / "final.json").read_text())
    assert final["val_accuracy"] > 0.6  # a guess is right in 0.25
    assert final["val_top5"] == 1.0 and final["generated_data"] and final["workers"] == 2
    assert final["global_batch"] == 32 and final["peak_lr"] == 0.02 and final["samples"] == 3 * 256
    assert final["images_per_s"] > 0 and final["study_images_per_s"] > 0 and final["first_batch_s"] > 0
    lines = [json.loads(line) for line in (trained[0] / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "val_loss" in line]
    assert len(losses) == 3 and losses[2] < losses[0]


def test_the_log_is_the_studys(trained: tuple[Path, str]) -> None:
    _, log = trained
    pair = r"\d+\.\d{3} \(\d+\.\d{3}\)"
    quality = rf"Loss \d+\.\d{{4}} \(\d+\.\d{{4}}\)\tAcc@1 {pair}\tAcc@5 {pair}"
    steps = re.findall(rf"^Epoch: \[(\d)\]\[(\d+)/8\]\tTime {pair}\tData {pair}\t{quality}$", log, re.M)
    assert [(int(e), int(i)) for e, i in steps] == [(e, i) for e in range(3) for i in (0, 4)]
    assert re.findall(rf"^Test: \[(\d+)/2\]\tTime {pair}\t{quality}$", log, re.M) == ["0"] * 3
    assert len(re.findall(r"^ \* Acc@1 \d+\.\d{3} Acc@5 100\.000$", log, re.M)) == 3
    assert "=> creating model 'resnet18'\n" in log and "Setting learning rate for epoch 0 to 0.02\n" in log
    assert f"torch.version.__version__={torch.__version__}\n" in log and "generated" in log


def test_checkpoints_have_the_studys_names_and_fields(trained: tuple[Path, str]) -> None:
    out, log = trained
    last, best = (torch.load(out / name, weights_only=True) for name in ("checkpoint.pth.tar", "model_best.pth.tar"))
    assert {"epoch", "arch", "state_dict", "best_acc1", "optimizer"} <= set(last)
    assert last["epoch"] == 3 and last["arch"] == "resnet18"
    told = [float(share) for share in re.findall(r"Acc@1 (\S+) Acc@5 100.000$", log, re.M)]
    assert last["best_acc1"] == pytest.approx(max(told), abs=5e-4)
    assert best["epoch"] == told.index(max(told)) + 1 and best["best_acc1"] == last["best_acc1"]


def test_validation_counts_every_picture_once(trained: tuple[Path, str], pictures: Path, tmp_path: Path) -> None:
    """Two workers' sharded validation is that of one worker, over the checkpoint that it was of."""
    checkpoint = torch.load(trained[0] / "checkpoint.pth.tar", weights_only=True)
    torch.save(checkpoint["state_dict"], tmp_path / "weights.pt")
    options = SMALL | {"data": str(pictures), "out": str(tmp_path / "run"), "loaders": 0, "evaluate": True, "batch": 7}
    alone = train(msgspec.convert(options | {"weights": str(tmp_path / "weights.pt")}, Options))
    final = json.loads((trained[0] / "final.json").read_text())
    assert alone["val_accuracy"] == pytest.approx(final["val_accuracy"], abs=1e-6)
    assert alone["val_loss"] == pytest.approx(final["val_loss"], rel=1e-4)
    assert (43 * alone["val_accuracy"]) == pytest.approx(round(43 * alone["val_accuracy"]), abs=1e-4)


def short(pictures: Path, out: Path, **more: Any) -> Options:
    given = SMALL | {"data": str(pictures), "out": str(out), "epochs": 4 / 64, "batch": 4} | more
    return Options.of(given)  # type: ignore[return-value]


def weights(out: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(out / "checkpoint.pth.tar", weights_only=True)["state_dict"]
    return state


def test_an_interrupted_run_ends_with_the_same_bits(pictures: Path, tmp_path: Path, capfd: Any) -> None:
    for name, more in {"sgd": {}, "lars": {"schedule": "lars", "warmup": "none"}}.items():
        whole, broken = tmp_path / f"{name}-whole", tmp_path / f"{name}-broken"
        assert train_here(short(pictures, whole, **more)) == 0  # four steps
        assert train_here(short(pictures, broken, **more, max_steps=2)) == 0
        assert train_here(short(pictures, broken, **more, resume="auto", loaders=0)) == 0
        assert f"=> loaded checkpoint '{broken}/checkpoint.pth.tar' (epoch 0)\n" in capfd.readouterr().out
        one, other = weights(whole), weights(broken)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_only_steps_if_only_their_speed_is_wanted(pictures: Path, tmp_path: Path, capfd: Any) -> None:
    assert train_here(short(pictures, tmp_path, max_steps=1, validate=False, save=False)) == 0
    assert "Test:" not in capfd.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.json"]


def test_it_goes_on_from_a_checkpoint_of_the_studys_own_script(pictures: Path, tmp_path: Path, capfd: Any) -> None:
    assert train_here(short(pictures, tmp_path / "ours", max_steps=1)) == 0
    ours = torch.load(tmp_path / "ours" / "checkpoint.pth.tar", weights_only=True)
    theirs = {"epoch": 2, "arch": "resnet18", "best_acc1": torch.tensor(99.5)}
    torch.save(theirs | {key: ours[key] for key in ("state_dict", "optimizer")}, tmp_path / "theirs.pth.tar")
    options = short(pictures, tmp_path / "on", resume=str(tmp_path / "theirs.pth.tar"), epochs=2 + 1 / 64)
    assert train_here(options) == 0
    assert "Epoch: [2][0/64]" in capfd.readouterr().out
    assert torch.load(tmp_path / "on" / "checkpoint.pth.tar", weights_only=True)["best_acc1"] == pytest.approx(99.5)
    assert not (tmp_path / "on" / "model_best.pth.tar").exists()  # nothing was better


def test_a_damaged_picture_ends_the_run_with_its_name(pictures: Path, tmp_path: Path, capfd: Any) -> None:
    for split in ("train", "val"):
        for label in range(2):
            place = tmp_path / split / f"c{label}"
            place.mkdir(parents=True)
            for number in range(4):
                (place / f"{number}.jpg").write_bytes((pictures / f"val/n{label:08d}/{number}.JPEG").read_bytes())
    damaged = tmp_path / "train" / "c1" / "2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:300])
    assert train_here(short(tmp_path, tmp_path / "run", epochs=1.0)) == 2
    assert str(damaged) in capfd.readouterr().err


def test_pictures_that_were_cut_off_end_two_workers_in_words_and_nothing_is_lost(
    trained: tuple[Path, str], pictures: Path, tmp_path: Path
) -> None:
    """One sentence for each of them, no traceback; what was saved before is there to go on from."""
    shutil.copytree(pictures, tmp_path / "data")
    shutil.copytree(trained[0], tmp_path / "out")
    for path in (tmp_path / "data" / "train").glob("*/*.JPEG"):
        path.write_bytes(path.read_bytes()[:300])
    options = SMALL | {"data": "data", "out": "out", "loaders": 0, "epochs": 4, "resume": "auto"}
    command = ("train", "imagenet", "-np", "2", "--zero-gamma", *flags(**options))
    done = run_hora(*command, cwd=tmp_path, timeout_s=110)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "cannot be decoded: it is cut off or damaged" in done.stderr
    for path in trained[0].glob("*.pt*"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_splits_with_different_classes_are_refused(pictures: Path, tmp_path: Path) -> None:
    for place in ("train/cat", "train/dog", "val/cat"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.jpg").write_bytes(jpeg.encode(torch.zeros(40, 40, 3, dtype=torch.uint8).numpy()))
    with pytest.raises(BadData, match=r"training has 2 classes and validation 1.*only one of them has dog"):
        train(short(tmp_path, tmp_path / "run"))


def test_weights_that_do_not_fit(pictures: Path, tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"--weights .*w.pt does not fit"):
        train(short(pictures, tmp_path / "run", weights=str(tmp_path / "w.pt")))
