"""Jobs in a container: who runs it, what of the host is visible inside, and what it cannot do.

On one node the whole command runs in one container, with its launcher, so workers share memory as usual. On several,
srun starts one for each worker, with the host's processes and network, by which workers of a node still find each
other.
"""

from __future__ import annotations

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
    if runtime == "slurm" and scheduler != "Slurm":
        raise UsageError(
            f"--container {order.container}: {scheduler} runs no containers. Give an Apptainer image (.sif)."
        )
    if runtime == "slurm" and order.mounts:
        raise UsageError("--mount: what Slurm's own containers see is in their bundle's config.json. Put it there.")
    if order.nodes > 1 and runtime == "docker":
        raise UsageError(
            f"--container {order.container} on {order.nodes} nodes: Docker starts containers on one node. Give an "
            "Apptainer image (apptainer pull docker://…), or ask for one node."
        )
    if order.nodes > 1 and scheduler != "Slurm":
        raise UsageError(
            f"--container on {order.nodes} nodes needs Slurm's srun, and {scheduler} has none. Ask for one."
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
        mounts = "".join(f" --bind {word(mount)}" for mount in order.mounts)
        gpus = " --nv" if order.gpus_per_node else ""
        return [f'container=(apptainer exec --bind "$PWD" --pwd "$PWD"{gpus}{mounts} {image})']
    mounts = "".join(f" --volume {word(mount if ':' in mount else f'{mount}:{mount}')}" for mount in order.mounts)
    gpus = " --gpus all" if order.gpus_per_node else ""
    return [
        "container=(docker run --rm --network=host --ipc=host --pid=host"
        f' --user "$(id -u):$(id -g)" --volume "$PWD:$PWD" --workdir "$PWD"{gpus}{mounts} {image})'
    ]


def staged(order: BatchJob) -> list[str]:
    """What makes staged data visible inside."""
    flag = {"apptainer": "--bind", "docker": "--volume"}.get(order.container_runtime)
    if flag is None or not order.stage:
        return []
    what = '"$stage"' if flag == "--bind" else '"$stage:$stage"'
    return [f'container=("${{container[@]:0:2}}" {flag} {what} "${{container[@]:2}}")  # seen under the same name']
