"""The images of the miniature: the first of MNIST's, which are in no order, or generated digits if it is not there."""

from __future__ import annotations

from pathlib import Path

from hora.data.generated import MARK, generated_facts, is_generated, mark_generated
from hora.data.idx import find_idx, read_idx, write_idx
from hora.data.make.digits import make_digits
from hora.errors import BadData

__all__ = ["prepare"]

_SPLITS = {"train": "train", "t10k": "test"}


def prepare(source: Path | None, folder: Path, samples: int, test: int, jobs: int = 1) -> str:
    """Put that many images into ``folder``, from MNIST in ``source`` or drawn; what they are, in words. What is there
    already stays."""
    done = folder / "PREPARED"
    if source is None:
        make_digits(folder, samples=samples, test=test, jobs=jobs)
        return f"{samples:,} generated digits, and {test:,} to validate with: not MNIST"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for split, count in (("train", samples), ("t10k", test)):
            for kind, dimensions in (("images-idx3", 3), ("labels-idx1", 1)):
                array = read_idx(find_idx(source, f"{split}-{kind}-ubyte"), dimensions)
                if len(array) < count:
                    raise BadData(
                        f"{source} has {len(array)} images to {_SPLITS[split]}, and {count} are wanted. Give --data "
                        "the folder of the whole MNIST, or leave it out."
                    )
                write_idx(folder / f"{split}-{kind}-ubyte", array[:count])
        if is_generated(source):
            mark_generated(folder, **(generated_facts(source) or {}))
        else:
            (folder / MARK).unlink(missing_ok=True)
        done.touch()
    drawn = "generated digits" if is_generated(folder) else "images of MNIST"
    return f"the first {samples:,} {drawn}, and {test:,} to validate with"
