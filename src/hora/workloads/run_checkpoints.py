"""A run's checkpoints: where they go, which to continue from, and that two runs do not get mixed up in one folder.

Used on rank 0. What a file is made of is the framework's (``run``, ``keras_run``); that it is complete is the store's
business (``hora.checkpoint``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hora.checkpoint import Checkpoint, CheckpointStore
from hora.errors import EnvironmentUnfit, UsageError
from hora.files import replacing_path

__all__ = ["RunCheckpoints", "fitting"]


@contextmanager
def fitting(content: Mapping[str, Any], path: Path, workload: str) -> Iterator[None]:
    """Inside, a checkpoint is put into model and optimizer; an error becomes one sentence."""
    theirs = content.get("run", {}).get("workload", workload)
    if theirs != workload:
        raise UsageError(f"{path} is of {theirs}, not of {workload}. Give another checkpoint.")
    try:
        yield
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).strip().replace("\n", " ")[:300]
        raise UsageError(
            f"{path} does not fit this run: {reason}. It is of another network or optimizer. Train with the options "
            "that it was written with, or give another checkpoint."
        ) from None


class RunCheckpoints:
    """The checkpoints in one folder.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> keeper = RunCheckpoints(Path(folder.name))
    >>> keeper.choose("auto", overwrite=False) is None
    True
    >>> saved = keeper.save("epoch-0001.pt", lambda file: file.write(b"weights"), position=100, facts={})
    >>> keeper.choose("auto", overwrite=False).name
    'epoch-0001.pt'
    >>> folder.cleanup()
    """

    def __init__(
        self, folder: Path, *, keep: int = 3, best: str = "", highest: bool = True, best_name: str = ""
    ) -> None:
        """The one with the best value of the fact ``best`` stays; it is also called ``best_name``, if that is given."""
        self.folder = folder
        self._store = CheckpointStore(folder, keep=keep, best=best, highest=highest)
        self._best_name = best_name

    def choose(self, resume: str, overwrite: bool) -> Path | None:
        """The checkpoint to continue from; None to begin anew. Refuses what would mix two runs."""
        if resume == "auto":
            latest = self._store.latest()
            return latest.path if latest else None
        there = self._store.all()
        if resume != "no":
            return self._named(Path(resume), there, overwrite)
        if there and not overwrite:
            raise UsageError(
                f"there is a run in {self.folder} already, up to {there[-1].path.name}. A new one would mix with it. "
                "Continue with it (--resume auto), delete it (--overwrite), or give another folder (--out)."
            )
        self._forget(there)
        return None

    def _named(self, path: Path, there: list[Checkpoint], overwrite: bool) -> Path:
        if path.is_dir():
            latest = CheckpointStore(path).latest()
            if latest is None:
                raise UsageError(
                    f"--resume {path}: no checkpoint in that folder is complete. Give another, or leave --resume out."
                )
            path = latest.path
        if not path.is_file():
            raise UsageError(f"--resume {path}: there is no such file. Give a checkpoint, its folder, or 'auto'.")
        for checkpoint in CheckpointStore(path.parent).all():
            if checkpoint.path == path:
                checkpoint.verify()
        known = next((c for c in there if c.path.resolve() == path.resolve()), None)
        later = [c for c in there if known is None or c.position > known.position]
        if later and not overwrite:
            raise UsageError(
                f"--resume {path}: there are other checkpoints in {self.folder}, up to {later[-1].path.name}, which "
                "this run would mix with. Delete them (--overwrite), or give another folder (--out)."
            )
        self._forget(later)
        return path

    def _forget(self, checkpoints: list[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            checkpoint.path.with_name(checkpoint.path.name + ".json").unlink(missing_ok=True)
            checkpoint.path.unlink(missing_ok=True)

    def save(
        self, name: str, write: Callable[[BinaryIO], object], *, position: float, facts: Mapping[str, Any]
    ) -> Path:
        """Write one; whatever is killed meanwhile, the previous version is unchanged."""
        try:
            saved = self._store.save(name, write, position=position, facts=facts)
        except (OSError, RuntimeError) as error:  # torch wraps what the disk says
            if isinstance(error.__context__, KeyboardInterrupt):  # and Ctrl-C too: its file is not whole then
                raise error.__context__ from None
            raise EnvironmentUnfit(
                f"the checkpoint {self.folder / name} could not be written: {error}. The previous version is "
                "unchanged. Free some space, or give another folder with --out; then continue with --resume auto."
            ) from None
        return saved.path

    def name_best(self, path: Path) -> None:
        """This is the best so far."""
        if self._best_name:
            with replacing_path(self.folder / self._best_name) as part:
                try:
                    os.link(path, part)  # the store replaces files, it does not write into them
                except OSError:
                    shutil.copyfile(path, part)
