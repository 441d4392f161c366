"""The job script: directives, software, data, training, in the order in which a reader wants to know them.

It has only what was asked for: two nodes and nothing else give a script of a dozen lines.
"""

from __future__ import annotations

from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.launch.submit import container
from hora.launch.submit.bash import array, comment, word
from hora.launch.submit.order import BatchJob
from hora.launch.submit.pbs import PbsScheduler
from hora.launch.submit.scheduler import Scheduler
from hora.launch.submit.slurm import SlurmScheduler

__all__ = ["MARK", "SCHEDULERS", "render"]

SCHEDULERS: dict[str, Scheduler] = {"slurm": SlurmScheduler(), "pbs": PbsScheduler()}
MARK = "# Written by: "  # by which a script is known as ours, and may be overwritten

_STAGE = r"""
# Runs on each node: brings SOURCE to TARGET on its own disk, unless it is there already.
bring_here() {
    local source=$1 target=$2 node folder stamp needed_kb free_kb within
    node=${SLURMD_NODENAME:-$(uname -n)}  # $HOSTNAME may be another's: it comes with the environment
    folder=$(dirname "$target")
    mkdir -p "$(dirname "$folder")"
    mkdir -m 700 "$folder" 2>/dev/null || true
    if [[ -L $folder || ! -O $folder || -L $target || (-e $target && ! -O $target) ]]; then
        echo "$node: $target cannot be trusted: it or its folder is a link or another user's; remove it" >&2
        return 1
    fi
    chmod 700 "$folder"
    exec 9>"$target.lock"
    flock 9  # jobs that share a node take turns
    if [[ ! -r $source ]]; then
        echo "$node: $source cannot be read" >&2
        return 1
    fi
    stamp=$(stat -L --format='%n, %s bytes, changed %y' "$source")
    if [[ -e $target && -e $target.stamp && $(<"$target.stamp") == "$stamp" ]]; then
        echo "$node: $target is here already"
        return 0
    fi
    rm -rf "$target" "$target.partial" "$target.unpacked"  # an older version, or what an interrupted job left
    needed_kb=$(du -skL "$source" | cut -f1)
    free_kb=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
    if ((needed_kb >= free_kb)); then
        echo "$node: $source takes at least $needed_kb KB, and $folder has $free_kb KB free" >&2
        return 1
    fi
    case $source in
        *.tar | *.tar.* | *.tgz | *.tbz2 | *.txz | *.tzst)
            mkdir "$target.partial"
            tar --no-same-owner -xf "$source" -C "$target.partial"
            within=$(ls -A "$target.partial")
            case $within in
                train | val | test) ;;  # a part of the data, which keeps its name
                *)
                    if [[ -n $within && -d $target.partial/$within && ! -L $target.partial/$within ]]; then
                        chmod u+rwx "$target.partial/$within"
                        mv "$target.partial/$within" "$target.unpacked"  # one folder: it is the data
                        rmdir "$target.partial"
                        mv "$target.unpacked" "$target.partial"
                    fi
                    ;;
            esac
            ;;
        *) cp -rL "$source" "$target.partial" ;;
    esac
    mv "$target.partial" "$target"
    echo "$stamp" >"$target.stamp"
    echo "$node: $source is now in $target"
}
""".strip()

_VERSIONS = r"""
python3 - hora torch tensorflow jax numpy mpi4py <<'END'
import importlib.metadata as metadata, platform, sys
versions = (f"{name} {metadata.version(name)}" for name in sys.argv[1:] if [*metadata.distributions(name=name)])
print(f"Python {platform.python_version()} in {sys.prefix}", *versions, sep=", ")
END
""".strip()


def render(order: BatchJob, scheduler: Scheduler, script: str, written_by: str) -> str:
    """The whole script. ``script`` is the path it will have, ``written_by`` the command line that asked for it."""
    scheduler.check(order)
    container.check(order, scheduler.name)
    sections = [
        _head(order, scheduler, script, written_by),
        _software(order),
        _tell(order, scheduler),
        _warning(order, scheduler, script),
        _data(order, scheduler),
        _training(order, scheduler),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _title(text: str) -> str:
    return f"# ---- {text} ".ljust(80, "-")


def _head(order: BatchJob, scheduler: Scheduler, script: str, written_by: str) -> list[str]:
    login = " -l" if order.modules else ""  # login shells know `module`
    return [
        f"#!/bin/bash{login}",
        *scheduler.head(order),
        "",
        comment(written_by).replace("# ", MARK, 1),
        comment(f"Submit with:  {scheduler.program} {script}"),
        *_exceptions(order),
        "",
        "set -euo pipefail",
        *scheduler.arrive(order),
        "say() { printf '%s  %s\\n' \"$(date +'%F %T')\" \"$*\"; }",
    ]


def _exceptions(order: BatchJob) -> list[str]:
    """What shellcheck cannot see: the environment's script, and functions called by traps and on other nodes."""
    codes = (["SC1091"] if order.venv else []) + (["SC2329"] if order.warn or order.stage else [])
    return [f"# shellcheck disable={','.join(codes)}"] if codes else []


def _software(order: BatchJob) -> list[str]:
    lines = []
    if order.modules or order.venv:
        lines.append("set +u  # scripts of modules and environments use variables that are not set")
        if order.modules:
            lines.append(f"module load {' '.join(map(word, order.modules))}")
        if order.venv:
            lines.append(f"source {word(order.venv + '/bin/activate')}")
        lines.append("set -u")
    lines += [f"export {name}={word(value)}" for name, value in order.env]
    if (
        (order.launcher == "srun" or order.in_each_worker)
        and order.cpus_per_task
        and "OMP_NUM_THREADS" not in dict(order.env)
    ):
        lines.append(f"export OMP_NUM_THREADS={order.cpus_per_task}")
    return [_title("software"), *lines] if lines else []


def _tell(order: BatchJob, scheduler: Scheduler) -> list[str]:
    shape = f"{order.nodes} x {order.tasks_per_node} workers"
    lines = [_title("what runs, where, with what"), *(container.lines(order) if order.container else [])]
    if order.chain > 1:
        lines.append("job=${CHAIN_JOB:-1}  # which of the chain; given when it was submitted")
    if order.max_requeues:
        lines.append(f"restarts={scheduler.restarts}")
    said = [f"job {scheduler.job_id} ({scheduler.job_name}) on {scheduler.node_list}: {shape}"]
    if order.array:
        said.append(f"task {scheduler.array_task} of an array")
    if order.chain > 1:
        said.append(f"job $job of {order.chain} in its chain")
    if order.max_requeues:
        said.append(f"requeued $restarts of at most {order.max_requeues} times")
    lines.append(f'say "{", ".join(said)}"')
    lines.append("say \"code: $PWD, $(git describe --always --dirty 2>/dev/null || echo 'not in git')\"")
    if not order.container:
        return [*lines, *_VERSIONS.splitlines()]
    inside = "srun --ntasks=1 --container=" + word(order.container) if order.container_runtime == "slurm" else ""
    inside = inside or '"${container[@]}"'
    return [
        *lines,
        f"{inside} python3 -c 'import hora; print(f\"hora {{hora.__version__}} in the container\")' || {{",
        f"    say {word(f'{order.container} cannot be started, or has no Hora in it (python3 -c import hora)')} >&2",
        '    say "Nothing was started. Install Hora in the image; docs/containers.md has a recipe." >&2',
        "    exit 3",
        "}",
    ]


def _warning(order: BatchJob, scheduler: Scheduler, script: str) -> list[str]:
    if not order.warn:
        return []
    code = PREEMPTED_EXIT_CODE
    signals = sorted({order.warn.signal, "TERM"}, reverse=True)
    lines = [
        _title("when the node is wanted back"),
        f"# {order.warn.signal} comes {order.warn.seconds} s before the time is up, TERM when the job is preempted.",
        "# Both are passed on as USR1: workers that ask hvd.preempted() finish their step, save",
        f"# their state and exit with {code}.",
        *(["warned=no"] if order.max_requeues else []),
        "training=",
        "pass_on() {",
        *(["    warned=yes"] if order.max_requeues else []),
        '    say "got SIG$1: asking the workers to save their state and leave"',
        '    [[ -z $training ]] || kill -USR1 "$training" 2>/dev/null || true',
        "}",
        *(f"trap 'pass_on {name}' {name}" for name in signals),
    ]
    if order.max_requeues:
        lines += [
            "requeue() {",
            f"    if ((restarts >= {order.max_requeues})); then",
            f'        say "not requeued: already requeued {order.max_requeues} times (--max-requeues)"',
            '        exit "$1"',
            "    fi",
            '    say "requeueing the job"',
            *(["    clean_up"] if order.stage and not order.keep_staged else []),
            *(f"    {line}" for line in scheduler.requeue(order, script)),
            '    exit "$1"',
            "}",
        ]
    return lines


def _data(order: BatchJob, scheduler: Scheduler) -> list[str]:
    if not order.stage:
        return []
    folder = word(order.stage_dir) if order.stage_dir else '"${TMPDIR:-/tmp}"'
    name = '"$(id -un)-staged"' if order.keep_staged else f'"$(id -un)-staged-{scheduler.job_id}"'
    lines = [
        _title("data: to each node's own disk, before training"),
        f"stage={folder}/{name}",
        *_STAGE.splitlines(),
        *scheduler.once_per_node(order),
        "bring() {",
        '    once_per_node bash -euo pipefail -c "$(declare -f bring_here); bring_here \\"\\$@\\"" bring "$@" || {',
        '        say "$1 could not be copied to every node; see above. Nothing was started." >&2',
        "        exit 1",
        "    }",
        "}",
    ]
    if not order.keep_staged:
        lines += [
            'clean_up() { once_per_node timeout 30 rm -rf "$stage" || true; }',
            "trap clean_up EXIT",
        ]
    lines += [f'bring {word(item.source)} "$stage"/{word(item.name)}' for item in order.stage]
    return [*lines, *(container.staged(order) if order.container else []), 'say "data is in $stage"']


def _training(order: BatchJob, scheduler: Scheduler) -> list[str]:
    meanings = {
        "stage": "$stage",
        "job": "$job",
        "epochs": f"$((job * {order.epochs_per_job}))",
        "task": scheduler.array_task,
    }
    values = {name: meanings[name] for name in meanings if name in order.placeholders}
    lines = [_title("training"), f"command={array(order.command, values)}"]
    if order.checkpoint_args:
        conditions = (["job > 1"] if order.chain > 1 else []) + (["restarts > 0"] if order.max_requeues else [])
        lines += [
            f"if (({' || '.join(conditions)})); then",
            f"    command+={array(order.checkpoint_args, values)}",
            "fi",
        ]
    started, inside = scheduler.launch(order), '"${container[@]}"'
    if not order.container or order.container_runtime == "slurm":
        words = [started]
    else:
        words = [started, inside] if order.in_each_worker else [inside, started]
    launch = " ".join([*filter(None, words), '"${command[@]}"'])
    lines.append('say "${command[*]}"')
    if not order.warn:
        return [*lines, launch, 'say "done"']
    again = order.max_requeues > 0
    if again:
        lines.append(f"[[ $warned == no ]] || requeue {PREEMPTED_EXIT_CODE}  # warned before it began")
    lines += [
        f"{launch} &",
        "training=$!",
        "while :; do  # a signal ends `wait` early",
        "    code=0",
        '    wait "$training" || code=$?',
        '    kill -0 "$training" 2>/dev/null || break',
        "done",
    ]
    if again:
        lines += [
            f"if ((code == {PREEMPTED_EXIT_CODE})) || [[ $warned == yes && $code -ne 0 ]]; then",
            '    requeue "$code"',
            "fi",
        ]
    return [*lines, 'say "ended with $code"', 'exit "$code"']
