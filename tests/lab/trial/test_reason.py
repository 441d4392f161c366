"""Why a child failed, from words that are really said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hora.lab.trial.reason import line, out_of_memory, tail


def test_torch_says_that_memory_is_short() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    said = f"[1]<stderr>:Traceback (most recent call last):\n[1]<stderr>:RuntimeError: {caught.value}\n"
    assert out_of_memory(1, said, 0)
    assert "allocate" in line(1, said) and not line(1, said).startswith("[1]")


@pytest.mark.parametrize(
    ("code", "said", "kills", "found"),
    [
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3 TiB", 0, True),
        (1, "MemoryError", 0, True),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB.", 0, True),
        (137, "| host node7, pid 12, killed by signal 9 (SIGKILL): probably out of memory in a container", 1, True),
        (137, "| host node7, pid 12, killed by signal 9 (SIGKILL): probably out of memory in a container", 0, False),
        (137, "killed by signal 9 (SIGKILL): out of memory (the kernel killed 1 for that during this job)", 0, True),
        (1, "ValueError: bad", 1, False),
        (-15, "", 1, False),
    ],
    ids=["numpy", "python", "cuda", "cgroup", "killed", "kernel", "other", "term"],
)
def test_out_of_memory(code: int, said: str, kills: int, found: bool) -> None:
    assert out_of_memory(code, said, kills) is found


def test_what_hora_said_first_is_the_cause() -> None:
    said = "\n".join(
        [
            "hora: step 3: loss is nan on rank 0. No parameter was changed by it.",
            "hora.errors.PeerLostError: rank 0 ended",
            "+-- hora: rank 0 failed first -----",
            "| hora: step 3: loss is nan on rank 0. No parameter was changed by it.",
        ]
    )
    assert line(1, said) == "step 3: loss is nan on rank 0. No parameter was changed by it."


def test_the_tail_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"\xc3" * 100 + b"the end")
    assert tail(log, 7) == "the end" and tail(tmp_path / "none") == ""
