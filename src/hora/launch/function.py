"""``hora.run``: call a function in every worker of a new job and get the results by rank.

The function is sent to the workers, and the results back, over descriptors they inherit; on one host no port is opened,
and no file is left anywhere. Between hosts both are sent in authenticated frames (``wire.frame``), so what comes
back may be unpickled. Works from scripts, ``python -c`` and notebooks, because functions of ``__main__`` are
shipped by value.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hora.config.env import environ
from hora.errors import EnvironmentUnfit, UsageError, WorkersFailed
from hora.launch import failure
from hora.launch.elastic.choose import FLAGS, Chosen, quicker
from hora.launch.elastic.choose import choose as choose_elastic
from hora.launch.elastic.supervise import supervise as supervise_elastic
from hora.launch.host import callee
from hora.launch.job import Job, JobResult
from hora.launch.output import Console
from hora.launch.planning.pick import pick
from hora.launch.supervise import supervise
from hora.launch.ways import make_way

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["run"]

R = TypeVar("R")


def run(
    func: Callable[..., R],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    *,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    elastic_timeout: int | None = None,
    spares: int | None = None,
    network_interface: str | None = None,
    env: Mapping[str, str] | None = None,
) -> list[R]:
    """Call ``func(*args, **kwargs)`` in ``np`` (or ``num_proc``) workers; returns their results in rank order.

    The arguments are those of ``horovod.run``. ``env`` adds variables to the workers' environment, ``executable`` is
    their Python, ``output_filename`` a directory for their output, ``use_gloo=True`` keeps them off shared memory. On
    other hosts (``hosts``, ``hostfile``, or a Slurm allocation) they are started as ``hora run`` starts them. With
    ``min_np`` or ``max_np`` the job is elastic: workers may be lost and come, and the results are those of the workers
    that were there at the end. ``elastic_timeout`` and ``spares`` are the flags of these names; ``slots`` is
    ``--slots-per-host``, ``cooldown_range`` is ``--blacklist-cooldown-range``.

    Raises WorkersFailed with the traceback of the first rank that failed; that exception is its ``__cause__``.

    >>> import hora
    >>> hora.run(pow, (2, 10), np=2)   # doctest: +SKIP
    [1024, 1024]
    """
    if not callable(func):
        raise UsageError(f"hora.run needs a function, not {func!r}. Pass the function itself, without calling it.")
    if np is not None and num_proc is not None and np != num_proc:
        raise UsageError(f"np={np} and num_proc={num_proc} are two names of one number. Give one of them.")
    wanted = np if np is not None else num_proc
    elastic = _elastic(
        np=wanted, hosts=hosts, hostfile=hostfile, host_discovery_script=host_discovery_script,
        min_np=min_np or min_num_proc, max_np=max_np or max_num_proc, slots_per_host=slots, reset_limit=reset_limit,
        blacklist_cooldown_range=None if cooldown_range is None else tuple(cooldown_range),
        elastic_timeout=elastic_timeout, spares=spares,
    )  # fmt: skip
    choice = elastic.choice if elastic is not None else pick(
        environ(), np=1 if wanted is None and not (hosts or hostfile) else wanted, hosts=hosts, hostfile=hostfile
    )  # fmt: skip
    plan = choice.plan
    names = [network_interfaces] if isinstance(network_interfaces, str) else [*(network_interfaces or ())]
    way = make_way(
        choice.on,
        interfaces=[*names, *([network_interface] if network_interface else [])],
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        export=tuple(env or ()),
    )

    settings = {"START_TIMEOUT": start_timeout, "TRANSPORT": "gloo" if use_gloo else None}
    environment = {
        **environ(),
        **{f"HORA_{name}": str(value) for name, value in settings.items() if value is not None},
        **(env or {}),
    }

    answers: defaultdict[int, bytearray] = defaultdict(bytearray)
    job = Job(
        plan=plan,
        way=way,
        command=(executable or sys.executable, callee.__file__),
        environment=environment if elastic is None else quicker(environment),
        console=Console.of_streams(sys.stdout, sys.stderr),
        prefix=plan.size != 1,
        output_directory=Path(output_filename) if output_filename else None,
        call=_call(func, tuple(args), dict(kwargs or {})),
        on_answer=lambda rank, data: answers[rank].extend(data),
        say=_say if verbose else lambda line: None,
        announce=(lambda line: None) if verbose else _say,
    )
    if elastic is None:
        return _results(supervise(job), answers, range(plan.size))
    outcome = supervise_elastic(job, elastic.elastic)
    finished = {ending.rank for ending in outcome.verdict.endings if not ending.failed}
    last = outcome.generations[-1].members if outcome.generations else ()
    return _results(outcome.verdict, answers, [worker for worker in last if worker in finished])


def _elastic(**asked: Any) -> Chosen | None:
    """What the arguments ask for, if it is an elastic job."""
    return choose_elastic(asked) if any(asked.get(name) is not None for name in FLAGS) else None


def _say(line: str) -> None:
    print(f"hora: {line}", file=sys.stderr)


def _call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call, as workers read it."""
    try:
        import cloudpickle
    except ImportError:
        raise EnvironmentUnfit(
            "hora.run ships functions with cloudpickle, which is not installed. Run 'pip install cloudpickle'."
        ) from None
    with _by_value_if_not_importable(sys.modules.get(getattr(func, "__module__", None) or "")):
        try:
            body = cloudpickle.dumps((func, args, kwargs))
        except Exception as error:
            raise UsageError(
                f"{func!r} cannot be sent to the workers: {error}. Something it uses holds a lock, a file or a "
                "connection; create that inside the function instead."
            ) from error
    # Workers must find the same modules, wherever this process found them.
    return callee.frame({"path": [os.path.abspath(entry) for entry in sys.path]}, body)


@contextlib.contextmanager
def _by_value_if_not_importable(module: ModuleType | None) -> Iterator[None]:
    """Ship the functions of a module that no import statement finds (made by a tool, say) by value."""
    import cloudpickle

    if module is None or module.__name__ == "__main__" or _importable(module.__name__):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _importable(name: str) -> bool:
    if name in sys.builtin_module_names:
        return True
    loaded = sys.modules.pop(name, None)  # find_spec would answer from what is loaded
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
    finally:
        if loaded is not None:
            sys.modules[name] = loaded


def _results(verdict: JobResult, answers: Mapping[int, bytearray], workers: Sequence[int]) -> list[Any]:
    import cloudpickle

    if verdict.first is None and verdict.interrupted_by is None:
        mute = [rank for rank in workers if answers[rank][:1] != callee.ANSWER_RESULT]
        if not mute:
            return [cloudpickle.loads(memoryview(answers[rank])[1:]) for rank in workers]
        raise WorkersFailed(
            f"rank {mute[0]} ended with exit code 0 but returned nothing: the function left the process. "
            "Return from it instead of calling sys.exit or os._exit.",
            rank=mute[0],
        )
    if verdict.interrupted_by is not None:
        raise KeyboardInterrupt
    first = verdict.first
    assert first is not None
    cause, trace = None, ""
    if answers[first.rank][:1] == callee.ANSWER_ERROR:
        head, _, body = bytes(answers[first.rank][1:]).partition(b"\n")
        trace = json.loads(head)["traceback"]
        with contextlib.suppress(Exception):  # its class may not exist here; the text says it all
            cause = cloudpickle.loads(body)
    title, lines = failure.explain(first, verdict.endings, verdict.tails[first.rank])
    text = f"{title}: {lines[0]}\n\n{trace}" if trace else "\n".join([f"{title}: {lines[0]}", *lines[1:]])
    error = WorkersFailed(text, exit_code=verdict.exit_code, rank=first.rank)
    raise error from (cause if isinstance(cause, BaseException) else None)
