"""The Dockerfile is built for real, by buildah, on a Debian of debootstrap's; two workers in it sum in shared memory.

No registry of images is needed. How packages are reached (apt's and pip's settings) is taken from this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


def run(*command: str | Path, timeout_s: float = 900.0, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        env={**os.environ, **variables}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


class Builder:
    """buildah with a store of its own, so that nothing stays."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, command: str, *arguments: str | Path) -> str:
        where = ["--root", self.place / "store", "--runroot", self.place / "run", "--storage-driver", "vfs"]
        return run("buildah", *where, command, *arguments, BUILDAH_ISOLATION="chroot")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name, path="/usr/sbin:/usr/bin")]
    if missing or os.geteuid():
        pytest.skip(f"needs root, and apt install {' '.join(missing) or 'nothing more'}")
    place = tmp_path_factory.mktemp("image")
    made = Builder(place)
    yield made
    made("rm", "--all")
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def base(builder: Builder) -> str:
    """A Debian with Python: what a registry would give."""
    root = builder.place / "debian"
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)")
    mirror, release = next(line.split() for line in targets.splitlines() if not line.split()[1].count("-"))
    packages = "python3,python3-pip,ca-certificates"
    run(
        "debootstrap",
        "--variant=minbase",
        f"--include={packages}",
        release,
        root,
        mirror,
        PATH=f"{os.environ['PATH']}:/usr/sbin:/sbin",
    )
    for folder in ("sources.list.d", "apt.conf.d"):
        shutil.copytree(f"/etc/apt/{folder}", root / "etc/apt" / folder, dirs_exist_ok=True)
    for certificates in Path("/etc/ssl/certs").glob("ca-certificates.crt"):
        shutil.copy(certificates, root / "etc/ssl/certs")
    for settings in (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf"):
        if settings.exists():
            shutil.copy(settings, root / "etc/pip.conf")
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):  # an image of Python's has none
        mark.unlink()
    container = builder("from", "scratch").strip()
    builder("add", "--quiet", container, root, "/")
    builder("commit", "--quiet", container, "localhost/base")
    return "localhost/base"


def test_an_image_is_built_and_its_workers_sum(builder: Builder, base: str) -> None:
    builder("bud", "--network", "host", "--build-arg", f"BASE={base}", "--build-arg", "EXTRAS=", "-f",
            ROOT / "packaging/Dockerfile", "-t", "localhost/hora", ROOT)  # fmt: skip
    container = builder("from", "localhost/hora").strip()
    assert "Scale a training script" in builder("run", container, "--", "hora", "--help")
    said = builder("run", container, "--", "hora", "doctor", "--only", "transports")
    assert "shared-memory: 4 B" in said and "summed over shared memory" in said, said
    assert "gcc" not in builder("run", container, "--", "ls", "/usr/bin"), "the compiler stays in its stage"
