"""The preloaded allocator: blocks of the sizes asked for are shared, everything else is as ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.jobs import run_hora

from hora.transport.preload import LIBRARY, preload

PROGRAM = """
import os, subprocess, sys
import torch
import hora.torch as hvd
from hora.engine import session

assert "_alloc.so" in os.environ["LD_PRELOAD"]
hvd.init()
assert "LD_PRELOAD" not in os.environ
assert "_alloc.so" not in subprocess.run(["cat", "/proc/self/maps"], capture_output=True, text=True, check=True).stdout
backend, n = session.current.backend, 1 << 18
def shared(tensor):
    return backend.shares(tensor.data_ptr(), tensor.nbytes)

early = torch.ones(n)
assert not shared(early)
assert backend.serve(4 * n) and backend.serve(8 * n + 4) and not backend.serve(1000)
kept = [torch.full((n,), float(i)) for i in range(100)]  # more than are kept when freed
assert all(map(shared, kept)) and not shared(torch.ones(n + 1)) and not shared(early)
assert shared(torch.ones(2 * n + 1))
assert all((t == i).all() for i, t in enumerate(kept))
addresses = {t.data_ptr() for t in kept}
del kept
again = torch.ones(n)
assert again.data_ptr() in addresses  # the block is used again
assert shared(again.clone()) and shared(again + early)
hvd.allreduce_(again, name="x", op=hvd.Sum)
assert (again == hvd.size()).all()
again.resize_(2 * n)  # moves it out of its block
assert (again[:n] == hvd.size()).all() and not shared(again)
held = torch.ones(n)
if (child := os.fork()) == 0:  # a data loader's worker must not take from the arena, nor give back
    fresh = torch.ones(n)
    fine = not shared(fresh) and (held == 1).all()
    held += 1  # its own copy
    del held, fresh
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0
assert (held == 1).all()
hvd.shutdown()
assert (held == 1).all()  # outlives the generation
del held
torch.ones(n).sum()
hvd.shutdown()
hvd.init()
assert hvd.allreduce(torch.ones(n), name="y", op=hvd.Sum)[0] == hvd.size()

backend = session.current.backend
assert backend.serve(4 * n)  # blocks of the first generation must not be handed out by a core that is gone
many = [torch.ones(n) for _ in range(80)]
del many[::2]
many += [torch.ones(n) for _ in range(80)]
assert all((t == 1).all() and shared(t) for t in many)
"""

LIVING_ON = """
import torch
import hora.torch as hvd
from hora.engine import session

n = 1 << 18
alive = []
for generation in range(4):
    hvd.init()
    backend = session.current.backend
    assert backend.serve(4 * n)
    alive += [torch.full((n,), float(generation)) for _ in range(3)]
    alive[-1].fill_(generation)
    assert [backend.shares(t.data_ptr(), t.nbytes) for t in alive[-4:]] == [False] * (len(alive) > 3) + [True] * 3
    total = torch.ones(n)
    hvd.allreduce_(total, name="x", op=hvd.Sum)
    assert (total == hvd.size()).all()
    hvd.shutdown()
    del alive[0]
    torch.ones(n)
assert [t[0].item() for t in alive] == [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0], [t[0].item() for t in alive]
"""


@pytest.mark.parametrize("wanted", [True, False])
def test_gradients_can_be_born_in_shared_memory(tmp_path: Path, wanted: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM if wanted else "import os\nassert '_alloc' not in os.environ.get('LD_PRELOAD', '')")
    environment = {} if wanted else {"HORA_SHARED_GRADIENTS": "0"}
    through_a_shell = ["sh", "-c", '"$0" "$1"; exit $?', sys.executable, script]
    done = run_hora("run", "-np", "2", *through_a_shell, timeout_s=60, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("library", ["", "libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
def test_a_program_with_an_allocator_of_its_own_keeps_it(tmp_path: Path, library: str) -> None:
    """Malloc theirs and free libc's would end it. With libc's malloc an arena serves; a forked child shares nothing."""
    if not LIBRARY.exists() or (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler, or the core was not built with one")
    source, program = Path(__file__).with_name("alloc_driver.c"), tmp_path / "driver"
    linked = ["-Wl,--no-as-needed", f"-l:{library}"] if library else []
    built = subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", "-fno-builtin", source, "-o", program, *linked, "-ldl"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if library and built.returncode and library in built.stderr:
        pytest.skip(f"{library} is not installed")
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [program, "beside" if library else "alone"], env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_blocks_outlive_their_generation(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LIVING_ON)
    done = run_hora("run", "-np", "2", sys.executable, script, timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_allocators_are_left_alone(tmp_path: Path) -> None:
    library = tmp_path / "_alloc.so"
    assert preload({}, library) == {}
    library.write_bytes(b"")
    assert preload({}, library)["LD_PRELOAD"] == str(library)
    assert preload({"LD_PRELOAD": str(library)}, library) == {}
    odd = tmp_path / "with space" / "_alloc.so"
    odd.parent.mkdir()
    odd.write_bytes(b"")
    assert preload({}, odd) == {}
