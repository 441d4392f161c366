"""World detection: each launcher's environment, uneven hosts, refusals."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.config import env
from hora.config.launcher_hints import LauncherHints
from hora.config.world import World, detect, is_homogeneous, places
from hora.errors import EnvironmentUnfit, UsageError

HORA = {
    "HORA_RANK": "1",
    "HORA_SIZE": "2",
    "HORA_LOCAL_RANK": "1",
    "HORA_LOCAL_SIZE": "2",
    "HORA_CROSS_RANK": "0",
    "HORA_CROSS_SIZE": "1",
    "HORA_HOSTNAME": "node7",
    "HORA_JOB": "abc",
    "HORA_HUB_FD": "5",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node7-99@1",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURMD_NODENAME": "h2",
}
BATCH = {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}


def find(environment: dict[str, str]) -> World:
    return detect(environment, host="here", launcher_of=lambda marker: f"launcher-of-{marker}")


def test_hora_run() -> None:
    assert find(HORA) == World(
        rank=1, size=2, local_rank=1, local_size=2, host="node7", launcher="hora", job_key="abc", hub_fd=5
    )


def test_horovods_names_are_aliases() -> None:
    world = find({name.replace("HORA_", "HOROVOD_"): value for name, value in HORA.items()})
    assert (world.rank, world.size, world.launcher) == (1, 2, "hora")


def test_open_mpi() -> None:
    assert find(OPENMPI) == World(
        rank=3,
        size=4,
        local_rank=1,
        local_size=2,
        cross_rank=1,
        cross_size=2,
        host="here",
        launcher="openmpi",
        job_key="openmpi-prterun-node7-99@1",
        hints=LauncherHints(pmix=("",)),
    )


def test_hydra_asks_which_process_started_it() -> None:
    world = find(HYDRA)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, 2, 1, 2)
    assert (world.launcher, world.job_key) == ("mpich", "mpich-launcher-of-PMI_RANK")


def test_hydra_on_several_hosts_is_named_after_where_mpiexec_listens() -> None:
    several = HYDRA | {"PMI_SIZE": "4", "PBS_JOBID": "77.server"}
    world = detect(several, host="node7", option_of={"--control-port": "node1:44183"}.__getitem__)
    assert world.job_key == "mpich-node1:44183"


def test_hydra_on_several_hosts_has_the_schedulers_name_of_the_job_or_none() -> None:
    several = HYDRA | {"PMI_SIZE": "4"}
    assert find(several).job_key == ""
    assert find(several | {"PBS_JOBID": "77.server"}).job_key == "mpich-PBS_JOBID-77.server"


def test_where_the_hub_is_comes_with_any_launcher() -> None:
    secret = "0f" * 32
    given = {"HORA_HUB_ADDRESSES": "10.0.0.1:4,[fd00::1]:4", "HORA_SECRET": secret, "HORA_HOSTNAME": "h2"}
    world = find(OPENMPI | given)
    assert (world.host, world.hub_addresses) == ("h2", ("10.0.0.1:4", "[fd00::1]:4"))
    assert world.secret == bytes.fromhex(secret) and secret not in repr(world) and "\\x0f" not in repr(world)
    assert find(HORA | {"HORA_SECRET_FD": "7"}).secret_fd == 7 and find(HORA).secret_fd == -1
    assert find(STEP | {"HORA_RENDEZVOUS_DIR": "/shared"}).rendezvous_dir == "/shared"
    with pytest.raises(UsageError, match="host:port"):
        find(HORA | {"HORA_HUB_ADDRESSES": "10.0.0.1"})


def test_torchrun() -> None:
    world = find(TORCHRUN)
    assert (world.rank, world.local_rank, world.cross_rank, world.cross_size) == (2, 0, 1, 2)
    assert world.launcher == "torchrun"
    assert world.job_key != find(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).job_key, "a restart is a new job"


def test_torchrun_without_local_rank_is_one_worker_a_host() -> None:
    world = find({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    assert (world.local_rank, world.local_size, world.cross_rank, world.cross_size) == (0, 1, 1, 2)


def test_slurm_step_on_uneven_nodes() -> None:
    first = find(STEP | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURMD_NODENAME": "h1"})
    assert (first.local_size, first.cross_rank, first.cross_size, first.homogeneous) == (2, 0, 1, False)
    second = find(STEP)
    assert (second.local_size, second.cross_rank, second.cross_size, second.host) == (1, 1, 2, "h2")
    assert second.job_key == "slurm-12.0.0"


def test_slurm_step_of_fewer_tasks_than_the_allocation() -> None:
    world = find(STEP | {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_TASKS_PER_NODE": "2,1"})
    assert (world.size, world.local_size) == (3, 1)


def test_pmi_under_srun_is_slurms_business() -> None:
    assert find(STEP | {"PMI_RANK": "2", "PMI_SIZE": "3"}).launcher == "slurm"
    assert find(STEP | HYDRA).launcher == "mpich", "hydra started by srun: its variables are the workers'"


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (HORA | OPENMPI | HYDRA | TORCHRUN | STEP, "hora"),
        (OPENMPI | HYDRA | TORCHRUN | STEP, "openmpi"),
        (HYDRA | TORCHRUN | STEP, "mpich"),
        (TORCHRUN | STEP, "torchrun"),
        (STEP, "slurm"),
        ({"RANK": "0"}, "alone"),
        ({}, "alone"),
        (OPENMPI | {"HORA_ALONE": "1"}, "alone"),
        (BATCH | {"HORA_ALONE": "1"}, "alone"),
        (BATCH | {"SLURM_NTASKS": "1"}, "alone"),
    ],
)
def test_order(environment: dict[str, str], launcher: str) -> None:
    assert find(environment).launcher == launcher


@pytest.mark.parametrize("special", ["", "4294967290", "4294967291"])
def test_a_batch_script_is_not_silently_alone(special: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"4 tasks.*srun.*hora run -np 4.*HORA_ALONE=1"):
        find(BATCH | ({"SLURM_STEP_ID": special} if special else {}))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"HORA_RANK": "0"}, "HORA_SIZE"),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE"),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, "rank 4 of 4"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "9"}, "of 9"),
        ({**HYDRA, "MPI_LOCALRANKID": "two"}, "MPI_LOCALRANKID='two'"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI_LOCALRANKID"),
        ({**TORCHRUN, "WORLD_SIZE": "-1"}, "WORLD_SIZE='-1'"),
        ({**STEP, "SLURM_TASKS_PER_NODE": "2(y2)"}, "2(y2)"),
        ({**STEP, "SLURM_NODEID": "7"}, "SLURM_NODEID=7"),
        ({**STEP, "SLURM_LOCALID": ""}, "SLURM_LOCALID"),
    ],
)
def test_broken_environments_are_refused_by_name(environment: dict[str, str], named: str) -> None:
    with pytest.raises(EnvironmentUnfit) as caught:
        find(environment)
    assert named in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from(sorted(HORA | OPENMPI | HYDRA | TORCHRUN | STEP)),
        st.sampled_from(["", "0", "1", "2", "x", "2(x2)"]),
    )
)
def test_any_environment_gives_a_possible_world_or_a_clear_refusal(environment: dict[str, str]) -> None:
    try:
        world = find(environment)
    except (EnvironmentUnfit, UsageError) as error:
        assert len(str(error)) > 40
    else:
        assert 0 <= world.rank < world.size
        assert 0 <= world.local_rank < world.local_size <= world.size
        assert 0 <= world.cross_rank < world.cross_size


@given(st.lists(st.integers(min_value=1, max_value=5), min_size=1, max_size=6))
def test_places_agree_with_slurms_arithmetic(per_node: list[int]) -> None:
    hosts = [f"h{node}" for node, tasks in enumerate(per_node) for _ in range(tasks)]
    for rank, place in enumerate(places(hosts)):
        node = int(hosts[rank][1:])
        world = find(
            {
                "SLURM_JOB_ID": "1",
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(len(hosts)),
                "SLURM_LOCALID": str(place.local_rank),
                "SLURM_NODEID": str(node),
                "SLURM_TASKS_PER_NODE": ",".join(map(str, per_node)),
            }
        )
        assert (world.local_rank, world.local_size, world.cross_rank, world.cross_size) == place
        assert world.homogeneous == is_homogeneous(hosts)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_places_are_consistent(hosts: list[str]) -> None:
    result = places(hosts)
    assert len({(place.local_rank, place.cross_rank) for place in result}) == len(hosts), "no two ranks share a place"
    for local_rank in {place.local_rank for place in result}:
        across = [place for place in result if place.local_rank == local_rank]
        assert {place.cross_rank for place in across} == set(range(len(across)))
        assert {place.cross_size for place in across} == {len(across)}


def test_horovods_example_of_uneven_hosts() -> None:
    result = places(["h1"] * 2 + ["h2"] * 4 + ["h3"])
    assert [place.cross_size for place in result] == [3, 2, 3, 2, 1, 1, 3]


def test_the_launcher_is_found_through_a_shell() -> None:
    """Two workers behind a shell each name this process; so would any number of them."""
    program = "from hora.config.env import launcher_process; print(launcher_process('HORA_TEST_MARK'))"
    environment = {**env.environ(), "HORA_TEST_MARK": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    answers = {
        subprocess.run(
            ["sh", "-c", f'{sys.executable} -c "{program}"; true'],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        for _ in range(2)
    }
    assert len(answers) == 1
    assert answers.pop().startswith(f"{os.getpid()}-")
