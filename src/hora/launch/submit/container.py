"""Jobs in a container: who runs it, what of the host is visible inside, and what it cannot do.

On one node the whole command runs in one container, with its launcher, so workers share memory as usual. On several,
srun starts one for each worker, with the host's processes and network, by which workers of a node still find each
other. Docker's daemon starts containers outside of the job, so the job's variables, cores and GPUs are passed on to it.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from hora.errors import UsageError
from hora.launch.submit.bash import word
from hora.launch.submit.order import BatchJob, hora_words

__all__ = ["check", "lines", "runtime_of"]


def runtime_of(image: str) -> str:
    """The runtime of an image, by its name: a file or address of Apptainer's, a bundle of Slurm's (OCI), or Docker's.

    >>> runtime_of("hora.sif"), runtime_of("docker://me/hora"), runtime_of("/images/hora/"), runtime_of("me/hora:1")
    ('apptainer', 'apptainer', 'slurm', 'docker')
    """
    if image.endswith(".sif") or "://" in image:
        return "apptainer"
    return "slurm" if image.endswith("/") or PurePath(image).is_absolute() else "docker"


def check(order: BatchJob, scheduler: str) -> None:
    """Refuse what this image, or this scheduler, cannot do."""
    if not order.container:
        if order.mounts:
            raise UsageError("--mount is for a container, and there is none. Give --container IMAGE as well.")
        return
    runtime, words = order.container_runtime, hora_words(order.command)
    if runtime == "docker" and runtime_of(order.container) != "docker":
        raise UsageError(
            f"--container {order.container} is not the name of an image of Docker's, such as me/hora:1. Give one, or "
            "leave --container-runtime out."
        )
    if runtime == "slurm" and scheduler != "Slurm":
        raise UsageError(
            f"--container {order.container}: {scheduler} runs no containers. Give an Apptainer image (.sif)."
        )
    if runtime == "slurm" and order.mounts:
        raise UsageError("--mount: what Slurm's own containers see is in their bundle's config.json. Put it there.")
    for mount in order.mounts:
        host, colon, inside = mount.partition(":")
        if not host or (colon and not inside.startswith("/")):
            raise UsageError(
                f"--mount {mount}: the path inside the container must begin with a slash. Give DIR, or DIR:/INSIDE."
            )
    if order.nodes > 1 and runtime == "docker":
        raise UsageError(
            f"--container {order.container} on {order.nodes} nodes: Docker starts containers on one node. Give an "
            "Apptainer image (apptainer pull docker://…), or ask for one node."
        )
    if order.nodes > 1 and scheduler != "Slurm":
        raise UsageError(
            f"--container on {order.nodes} nodes needs Slurm's srun, and {scheduler} has none. Ask for one node."
        )
    if order.nodes > 1 and words is not None and words[:1] != ("train",):
        raise UsageError(
            f"'hora {' '.join(words[:2])}' starts jobs of its own, which it cannot do from inside a container on "
            f"{order.nodes} nodes. Ask for one node, or leave --container out."
        )


def lines(order: BatchJob) -> list[str]:
    """The array ``container``, which goes before a command; nothing for Slurm's own, which srun is told of."""
    image = word(order.container)
    if order.container_runtime == "slurm":
        return ["container=()"]
    if order.container_runtime == "apptainer":
        mounts = "".join(f" --bind {_mount(mount)}" for mount in order.mounts)
        gpus = " --nv" if order.gpus_per_node else ""
        return [f'container=(apptainer exec --bind "$PWD" --pwd "$PWD"{gpus}{mounts} {image})']
    mounts = "".join(f" --volume {_mount(mount)}" for mount in order.mounts)
    gpus = ' --gpus "$gpus"' if order.gpus_per_node else ""
    names = [*_PASSED, *(re.escape(name) for name, _ in order.env)]
    if order.gpus_per_node:
        names.remove("CUDA_VISIBLE_DEVICES")  # inside there are only those, numbered from 0
    return [
        f"mapfile -t passed < <(compgen -e | grep -xE {word('|'.join(names))})",
        'cores=$(taskset -cp "$$")  # Docker starts it outside of the job, on all that the node has',
        *(_GPUS if order.gpus_per_node else []),
        "container=(docker run --rm --network=host --ipc=host --pid=host"
        ' --user "$(id -u):$(id -g)" --cpuset-cpus "${cores##*: }" "${passed[@]/#/--env=}"'
        ' ${PBS_NODEFILE:+--volume "$PBS_NODEFILE:$PBS_NODEFILE:ro"} --volume "$PWD:$PWD" --workdir "$PWD"'
        f"{gpus}{mounts} {image})",
    ]


_PASSED = ("(SLURM|PBS|HORA|OMP|NCCL)_.*", "CUDA_VISIBLE_DEVICES")  # variables of the job that a worker looks at
_GPUS = (
    "gpus=${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}  # by the numbers that they have for the whole node",
    'if [[ -n $gpus ]]; then gpus="\\"device=$gpus\\""; else gpus=all; fi',
)


def _mount(mount: str) -> str:
    """A mount for bash, with the place on the host and inside: a name without a slash would be a volume to Docker.

    >>> print(_mount("/data"), _mount("data:/in"), _mount("my data"))
    /data:/data "$PWD"/data:/in "$PWD"/'my data':"$PWD"/'my data'
    """
    host, _, inside = mount.partition(":")
    place = word(host) if host.startswith("/") else f'"$PWD"/{word(host)}'
    return f"{place}:{word(inside) if inside else place}"


def staged(order: BatchJob) -> list[str]:
    """What makes staged data visible inside."""
    flag = {"apptainer": "--bind", "docker": "--volume"}.get(order.container_runtime)
    if flag is None or not order.stage:
        return []
    what = '"$stage"' if flag == "--bind" else '"$stage:$stage"'
    return [f'container=("${{container[@]:0:2}}" {flag} {what} "${{container[@]:2}}")  # seen under the same name']
