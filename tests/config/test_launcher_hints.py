"""What is made of each launcher's environment. Values as the launchers set them."""

from __future__ import annotations

import pytest

from hora.config.launcher_hints import LauncherHints, launcher_hints

SLURM = {"SLURM_STEP_NODELIST": "gpu[01-02],login", "SLURM_CONF": "/run/slurm/conf/slurm.conf"}
TORCHRUN = {"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"}
OPENMPI = {"PMIX_NAMESPACE": "prterun-h1-99@1", "PMIX_PREFIX": "/opt/openmpi"}


@pytest.mark.parametrize(
    ("launcher", "environment", "expected"),
    [
        ("slurm", SLURM, LauncherHints(nodes=("gpu01", "gpu02", "login"), slurm_conf="/run/slurm/conf/slurm.conf")),
        ("slurm", {"SLURM_JOB_NODELIST": "h1"}, LauncherHints(nodes=("h1",), slurm_conf="/etc/slurm/slurm.conf")),
        ("slurm", {"SLURM_STEP_NODELIST": "h[1-"}, LauncherHints(slurm_conf="/etc/slurm/slurm.conf")),
        ("torchrun", TORCHRUN, LauncherHints(master="h1:29500", master_runs=True)),
        ("torchrun", {"MASTER_ADDR": "h1", "MASTER_PORT": "29500"}, LauncherHints(master="h1:29500")),
        ("torchrun", {"MASTER_ADDR": "h1"}, LauncherHints()),
        ("mpich", {"PMI_FD": "7"}, LauncherHints(pmi_fd=7)),
        ("openmpi", OPENMPI, LauncherHints(pmix=("/opt/openmpi",))),
        ("openmpi", {}, LauncherHints()),
        ("hora", SLURM | TORCHRUN | OPENMPI, LauncherHints()),
    ],
)
def test_clues(launcher: str, environment: dict[str, str], expected: LauncherHints) -> None:
    assert launcher_hints(environment, launcher) == expected
