"""Who is in: single decisions, and many whole jobs from seeds."""

from __future__ import annotations

from tests.elastic.simulation import Simulation

from hora.elastic.membership import (
    Action,
    AnnounceUpdate,
    ElasticLimits,
    EndWorker,
    FailJob,
    FormGeneration,
    Membership,
    StartWorker,
)


def begin(limits: ElasticLimits, hosts: dict[str, int], workers: int) -> Membership:
    """A job whose first generation has just begun."""
    membership = Membership(limits)
    started = [a.worker for a in membership.hosts(hosts, 0.0) if isinstance(a, StartWorker)]
    assert started == list(range(workers))
    formed: list[Action] = []
    for worker in started:
        formed += membership.hello(worker, 0.1)
    assert formed == [FormGeneration(1, tuple(range(workers)))]
    return membership


def test_survivors_of_a_death_are_the_next_generation_without_waiting_for_a_replacement() -> None:
    membership = begin(ElasticLimits(1, 3), {"a": 3}, 3)
    assert membership.ended(0, 1.0, fault=True) == []
    assert membership.hello(1, 1.1) == []
    assert membership.hello(2, 1.2) == [FormGeneration(2, (1, 2))]
    assert membership.tick(2.1) == [StartWorker(3, "a", 0)]  # after the host's rest
    assert membership.hello(3, 5.0) == [AnnounceUpdate(2)]
    assert membership.hello(1, 5.1) == []
    assert membership.hello(2, 5.2) == [FormGeneration(3, (1, 2, 3))]


def test_a_spare_takes_the_place_at_once() -> None:
    membership = Membership(ElasticLimits(2, 2, spares=1))
    assert [a.worker for a in membership.hosts({"a": 2}, 0.0) if isinstance(a, StartWorker)] == [0, 1, 2]
    assert membership.hello(0, 0.1) == [] and membership.hello(1, 0.1) == [FormGeneration(1, (0, 1))]
    assert membership.hello(2, 0.2) == []  # there is no room: it waits
    assert membership.ended(1, 1.0, fault=True) == []
    assert membership.hello(0, 1.1) == [FormGeneration(2, (0, 2))]


def test_a_host_rests_longer_each_time_its_workers_die_soon() -> None:
    membership = begin(ElasticLimits(1, 2, rest_s=(1.0, 4.0)), {"a": 2}, 2)
    now, rests = 10.0, []
    worker = 1
    for _ in range(4):
        membership.ended(worker, now, fault=True)
        died = now
        while not (started := [a for a in membership.tick(now) if isinstance(a, StartWorker)]):
            now += 0.125
        rests.append(now - died)
        worker = started[0].worker
    assert rests == [1.0, 2.0, 4.0, 4.0]


def test_too_few_for_too_long_ends_the_job_with_the_numbers() -> None:
    membership = begin(ElasticLimits(2, 2, timeout_s=30.0, rest_s=(100.0, 100.0)), {"a": 2}, 2)
    membership.ended(1, 1.0, fault=True)
    assert membership.hello(0, 1.0) == []
    assert membership.tick(30.0) == []
    (failure,) = membership.tick(31.1)
    assert isinstance(failure, FailJob) and "waited for 30 s" in failure.text
    assert "1 worker is ready and the job needs 2" in failure.text


def test_the_reset_limit() -> None:
    membership = begin(ElasticLimits(1, 2, reset_limit=0), {"a": 2}, 2)
    membership.ended(1, 1.0, fault=True)
    (failure,) = membership.hello(0, 1.0)
    assert isinstance(failure, FailJob) and "reset 0 times" in failure.text


def test_without_anybody_who_holds_the_state_the_job_ends_unless_it_can_restart() -> None:
    lost = begin(ElasticLimits(1, 2), {"a": 2}, 2)
    lost.ended(0, 1.0, fault=True)
    *_, failure = lost.ended(1, 1.0, fault=True)
    assert isinstance(failure, FailJob) and "so the job cannot continue" in failure.text
    again = begin(ElasticLimits(1, 2, restartable=True), {"a": 2}, 2)
    again.ended(0, 1.0, fault=True)
    assert again.ended(1, 1.0, fault=True)[-1:] != [failure]
    started = [a.worker for a in again.tick(9.0) if isinstance(a, StartWorker)]
    assert started == [2, 3]
    again.hello(2, 10.0)
    assert again.hello(3, 10.0) == [FormGeneration(2, (2, 3))]


def test_a_host_that_is_taken_away_is_left_at_a_commit_and_the_last_holder_stays_until_others_have_the_state() -> None:
    membership = begin(ElasticLimits(1, 1), {"a": 1}, 1)
    assert membership.hosts({"b": 1}, 1.0) == [StartWorker(1, "b", 0)]
    assert membership.hello(1, 2.0) == [AnnounceUpdate(1)]
    assert membership.hello(0, 2.1) == [
        FormGeneration(2, (0, 1)),
        AnnounceUpdate(2),
    ]  # 0 gives 1 the state, and may then go
    assert membership.hello(1, 3.0) == []
    left = membership.hello(0, 3.1)
    assert left == [FormGeneration(3, (1,)), EndWorker(0, "host a is no longer among those of the job")]


def test_a_member_that_does_not_come_back_is_ended_and_the_others_go_on() -> None:
    membership = begin(ElasticLimits(1, 2, timeout_s=10.0, rest_s=(100.0, 100.0)), {"a": 2}, 2)
    assert membership.hello(0, 1.0) == []  # it lost the other one, which hangs
    (end,) = membership.tick(11.1)
    assert isinstance(end, EndWorker) and end.worker == 1 and end.fault
    assert membership.ended(1, 11.2, fault=True)[-1] == FormGeneration(2, (0,))


def test_thousands_of_jobs_from_seeds() -> None:
    generations = 0
    for seed in range(2000):
        simulation = Simulation(seed)
        simulation.run()
        generations += simulation.generation
    assert generations > 5000
