"""Which tests reach a file, those that take least first. A map kept by hand, from two rules: tests mirror the source,
and what several workers do is in tests/multi, by subject."""

from __future__ import annotations

from pathlib import PurePosixPath

from tests.mutants.tree import Tree

__all__ = ["PYTHON", "SIMULATOR", "files", "stages"]

PYTHON = ("engine", "torch", "ops", "checkpoint", "schedule")  # the packages in which bugs are planted
SIMULATOR = "native/sim/simulate"
_NUMBERS = ["tests/transport/test_arithmetic.py", "tests/transport/test_kernels.py", "tests/engine/test_not_finite.py"]
_TABLE = [
    "tests/transport/test_shm.py", "tests/engine/test_table.py", "tests/engine/test_table_join.py",
    "tests/engine/test_table_input.py", "tests/engine/test_table_life.py", "tests/engine/test_table_groups.py",
]  # fmt: skip
_SEEN = ["tests/engine/test_snapshot.py", "tests/engine/test_stall.py", "tests/engine/test_timeline.py"]
_SANITIZED = ["tests/native/test_sanitizers.py", "-k", "address and not planted"]
_HOSTS = ["tests/engine/test_hierarchical.py", "tests/transport/test_preload.py"]
_BETWEEN_HOSTS = ("hosts.c", "tree.c", "link.c", "mac.c", "carry.c", "exchange.c", "ucx.c")
_CODES = ["tests/native/test_mac.py"]
_LINKS, _CROWD = ["tests/engine/test_links.py"], ["tests/native/test_crowd.py", "-k", "not thousand"]
_SUBJECTS = {
    "native": "allreduce or gather or order or joining or mistakes or lifecycle",
    "engine": "allreduce or gather or order or joining or mistakes or lifecycle",
    "torch": "optimizer or gradients or guards or summary or sync_batch_norm or compression or objects",
    "guards": "guards or optimizer_guarded",
    "ops": "objects or host or allreduce or gather or mistakes",
}
# Files that no test mirrors by name, or that others reach as well.
_MORE = {
    "files.py": ["tests/checkpoint", "tests/lab/records/test_files.py"],
    "checkpoint/store.py": ["tests/workloads/test_run.py"],
    "engine/backend.py": ["tests/engine/test_table.py", "tests/engine/test_message_backend.py"],
    "engine/execute.py": ["tests/engine/test_message_backend.py"],
    "engine/choice.py": ["tests/engine/test_hub.py"],
    "engine/core.py": ["tests/engine/test_session.py"],
    "engine/gathering.py": ["tests/engine/test_rendezvous.py", "tests/engine/test_hub.py"],
    "engine/handle.py": ["tests/torch/test_unbucketed.py"],
    "engine/hosttable.py": ["tests/engine/test_hierarchical.py"],
    "engine/hub_connection.py": ["tests/engine/test_hub.py", "tests/engine/test_message_backend.py"],
    "engine/monitor.py": ["tests/engine/test_stall.py", "tests/engine/test_timeline.py"],
    "engine/negotiate.py": ["tests/engine/test_agree.py", "tests/engine/test_simulate.py"],
    "engine/process_set.py": ["tests/engine/test_session.py"],
    "engine/request.py": ["tests/engine/test_table.py", "tests/engine/test_agree.py"],
    "engine/table.py": ["tests/engine/test_stall.py"],
    "engine/tableoperation.py": _TABLE,
    "engine/tablefault.py": [*_TABLE, "tests/engine/test_explain.py"],
    "engine/tableview.py": ["tests/engine/test_table.py", "tests/engine/test_stall.py"],
    "ops/backward.py": ["tests/torch/test_unbucketed.py"],
    "ops/numbering.py": ["tests/torch/test_numbering.py"],
    "ops/operation.py": ["tests/ops/test_host.py", "tests/torch/test_unbucketed.py"],
    "schedule/decay.py": ["tests/schedule"],
    "schedule/momentum.py": ["tests/schedule", "tests/workloads/test_run.py"],
    "schedule/show.py": ["tests/schedule", "tests/cli/test_plan.py"],
    "schedule/warmup.py": ["tests/schedule"],
    "torch/autograd.py": ["tests/torch/test_unbucketed.py"],
    "torch/collectives.py": ["tests/torch/test_unbucketed.py", "tests/torch/test_surface.py"],
    "torch/functions.py": ["tests/torch/test_unbucketed.py"],
    "torch/hooks.py": ["tests/torch/test_optimizer.py"],
    "torch/memory.py": ["tests/torch/test_bucket.py"],
    "torch/reducer.py": ["tests/torch/test_optimizer.py", "tests/torch/test_bucket.py"],
    "torch/submit.py": ["tests/torch/test_unbucketed.py", "tests/torch/test_adapter.py"],
    "torch/travel.py": ["tests/torch/test_optimizer.py", "tests/torch/test_bucket.py"],
}  # fmt: skip
_DEATHS = ["tests/chaos/test_kill.py", "-k", "shm"]
_DIES = ("circle", "hub", "monitor", "session", "table")  # of the engine: what a death goes through
_CALLS = ("adapter", "autograd", "collectives", "functions", "submit")  # of torch: what every collective goes through
_GUARDED = ("alone", "bucket", "guard", "reducer")
_BY_MESSAGES = ("agree", "carry", "circle", "hub", "line", "negotiate", "talk")


def files(tree: Tree, language: str) -> list[str]:
    """Where bugs are planted."""
    root = tree.root
    if language == "c":
        found = list((root / "native").glob("*.c"))
    else:
        found = [path for package in PYTHON for path in (root / "src" / "hora" / package).rglob("*.py")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def stages(tree: Tree, file: str) -> list[list[str]]:
    """What to run, one after the other until something is red: arguments of pytest, or the simulator's command."""
    if file.startswith("native/"):
        briefly, longer = ([[SIMULATOR, "--seconds", *more]] for more in (("5", "--seed", "1"), ("20", "--seed", "2")))
        name = PurePosixPath(file).name
        mine = [_NUMBERS] if name in ("kernels.c", "finite.c") else briefly
        mine += [_SEEN] if name == "report.c" else []
        if name in _BETWEEN_HOSTS:
            mine = [_CODES, *briefly] if name == "mac.c" else briefly
            return [*mine, _LINKS, *longer, _CROWD, _SANITIZED]
        then = [_TABLE, *longer, _NUMBERS, _SEEN, _multi("shm-3", "native"), _SANITIZED, _DEATHS, _HOSTS]
        return [*mine, *(stage for stage in then if stage not in mine)]
    path = PurePosixPath(file).relative_to("src/hora")
    package = path.parts[0]
    folder = tree.root / "tests" / path.parent
    mirrored = [*folder.glob(f"test_{path.stem}.py"), *sorted(folder.glob(f"test_{path.stem}_*.py"))]
    units = [test.relative_to(tree.root).as_posix() for test in mirrored]
    units += [name for name in _MORE.get(path.as_posix(), []) if name not in units]
    first = [*(units or [f"tests/{package}"]), file]  # a file's own examples are tests too
    layout = "gloo-3" if path.stem in _BY_MESSAGES else "shm-4" if path.stem == "hierarchical" else "shm-2"
    subject = "engine" if package == "torch" and path.stem in _CALLS else package
    several = [_multi(layout, subject)] if subject in _SUBJECTS else []
    if package == "torch" and path.stem in _GUARDED:  # without shared memory it is the guard that looks at gradients
        several.append(_multi("gloo-2", "guards"))
    return [first, *several, *([_DEATHS] if package == "engine" and path.stem in _DIES else [])]


def _multi(layout: str, subject: str) -> list[str]:
    return ["tests/multi/test_bodies.py", "-k", f"{layout}- and ({_SUBJECTS[subject]})"]
