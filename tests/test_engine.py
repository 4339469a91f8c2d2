"""Does the engine run each task, one at a time on a machine, and try again elsewhere what a worker lost or failed at?

The workers are made up: a script says what becomes of each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fathom_trace.errors import ClusterError, ScenarioError
from fathom_trace.sweeps.engine import (
    DONE,
    FAILED,
    LOST,
    MOST_ATTEMPTS,
    RUNNING,
    WAITING,
    Here,
    Message,
    Spread,
    Task,
    Update,
    Worker,
)  # fmt: skip

A, B, C = Worker("tcp://1", "one", "m1"), Worker("tcp://2", "one", "m1"), Worker("tcp://3", "two", "m2")

Script = Callable[["Scripted", str, str, Task], Sequence[Message]]


class Scripted:
    """A pool whose workers do what `script` says of an attempt; `tasks_now` is what each is at."""

    def __init__(self, workers: Sequence[Worker], script: Script) -> None:
        self.living = {w.address: w for w in workers}
        self.script = script
        self.started: list[tuple[str, str]] = []
        self.dropped: list[str] = []
        self.now: dict[str, str] = {}
        self.queue: list[Message] = []

    def workers(self) -> Mapping[str, Worker]:
        return dict(self.living)

    def start(self, token: str, address: str, task: Task) -> None:
        assert address in self.living
        self.started.append((task.name, address))
        self.now[token] = address
        self.queue += self.script(self, token, address, task)

    def drop(self, token: str) -> None:
        self.dropped.append(token)

    def receive(self, timeout_s: float) -> Message | None:
        return self.queue.pop(0) if self.queue else None


def well(pool: Scripted, token: str, address: str, task: Task) -> list[Message]:
    return [Message(token, RUNNING, at="1"), Message(token, DONE, at="2", value=task.function(*task.arguments))]


def square(value: int) -> int:
    return value * value


TASKS = [Task(f"t{k}", square, (k,)) for k in range(4)]


def ends(updates: Sequence[Update]) -> dict[str, Update]:
    return {u.task.name: u for u in updates if u.is_over}


def outcomes(update: Update) -> list[tuple[str, str]]:
    return [(a.worker, a.outcome) for a in update.attempts]


def test_here_each_task_runs_once_and_in_turn() -> None:
    def fail(_: int) -> None:
        raise ScenarioError("no good")

    updates = list(Here().run([TASKS[2], Task("bad", fail, (1,)), TASKS[3]]))
    assert [(u.task.name, u.is_over) for u in updates] == [(n, over) for n in ("t2", "bad", "t3") for over in (False, True)]
    assert [(u.value, u.problem) for u in updates if u.is_over] == [(4, ""), (None, "no good"), (9, "")]
    assert updates[0].attempts[0].outcome == RUNNING
    assert updates[0].attempts[0].ended == ""
    assert [u.attempts[0].outcome for u in updates if u.is_over] == [DONE, FAILED, DONE]
    assert all(u.attempts[0].began <= u.attempts[0].ended for u in updates if u.is_over)


def test_here_a_bug_is_not_hidden() -> None:
    with pytest.raises(TypeError):
        list(Here().run([Task("bug", square, ("x", "y"))]))


@pytest.mark.parametrize("alone", [False, True])
def test_every_task_is_done_wherever(alone: bool) -> None:
    pool = Scripted([A, B, C], well)
    found = ends(list(Spread(pool, alone).run(TASKS)))
    assert {name: u.value for name, u in found.items()} == {"t0": 0, "t1": 1, "t2": 4, "t3": 9}
    assert [name for name, _ in pool.started] == ["t0", "t1", "t2", "t3"]
    assert all(outcomes(u) == [(u.attempts[0].worker, DONE)] for u in found.values())
    assert {(a.began, a.ended) for u in found.values() for a in u.attempts} == {("1", "2")}


@pytest.mark.parametrize(("alone", "most"), [(True, 2), (False, 3)])
def test_a_machine_has_one_task_that_is_alone_and_a_worker_one_in_any_case(alone: bool, most: int) -> None:
    """A and B share a machine. Tasks end only when all that may run at once do run."""
    running: list[str] = []
    seen: list[int] = []

    def script(pool: Scripted, token: str, address: str, task: Task) -> list[Message]:
        running.append(token)
        seen.append(len(running))
        if len(running) < min(most, 4 - len(pool.started) + len(running)):
            return []
        done = [Message(t, DONE) for t in running]
        running.clear()
        return done

    found = ends(list(Spread(Scripted([A, B, C], script), alone).run(TASKS)))
    assert len(found) == 4
    assert max(seen) == most


def test_what_a_lost_worker_had_is_done_by_another() -> None:
    def script(pool: Scripted, token: str, address: str, task: Task) -> Sequence[Message]:
        if task.name == "t1" and len(pool.living) == 2:
            del pool.living[address]
            return [Message(token, RUNNING, at="1")]
        return well(pool, token, address, task)

    pool = Scripted([A, B], script)
    updates = list(Spread(pool, alone=True).run(TASKS))
    found = ends(updates)
    assert {name: u.value for name, u in found.items()} == {"t0": 0, "t1": 1, "t2": 4, "t3": 9}
    assert outcomes(found["t1"]) == [(A.address, LOST), (B.address, DONE)]
    assert found["t1"].attempts[0].problem == "its worker was lost"
    assert found["t1"].attempts[0].ended > "2000"
    assert any("tried again" in u.told for u in updates if u.task.name == "t1")
    assert pool.dropped == ["2"]
    assert pool.started == [("t0", A.address), ("t1", A.address), ("t1", B.address), ("t2", B.address), ("t3", B.address)]


def test_a_new_worker_at_the_address_of_a_lost_one_is_a_new_attempt() -> None:
    """Dask starts the task again by itself; the second beginning tells."""

    def script(pool: Scripted, token: str, address: str, task: Task) -> list[Message]:
        return [Message(token, RUNNING, at="1"), Message(token, RUNNING, at="3"), Message(token, DONE, at="4", value=7)]

    [end] = ends(list(Spread(Scripted([A], script)).run(TASKS[:1]))).values()
    assert [(a.began, a.ended, a.outcome) for a in end.attempts] == [("1", "3", LOST), ("3", "4", DONE)]
    assert end.value == 7


def test_what_fails_for_the_machines_sake_is_tried_on_another_and_what_fails_for_its_own_is_not() -> None:
    def script(pool: Scripted, token: str, address: str, task: Task) -> Sequence[Message]:
        if task.name == "t0":
            return [Message(token, FAILED, problem="no such preset")]
        if pool.living[address].machine == "m1":
            return [Message(token, FAILED, problem="out of memory", again=True)]
        return well(pool, token, address, task)

    found = ends(list(Spread(Scripted([A, B, C], script), alone=True).run(TASKS)))
    assert outcomes(found["t0"]) == [(A.address, FAILED)]
    assert found["t0"].problem == "no such preset"
    for name in ("t1", "t2", "t3"):
        assert found[name].value == square(int(name[1]))
        assert outcomes(found[name])[-1] == (C.address, DONE)
        assert all(worker in (A.address, B.address) for worker, outcome in outcomes(found[name])[:-1])
        assert len(found[name].attempts) <= 2, "B is on the machine on which it failed"


def test_what_fails_on_every_machine_has_failed() -> None:
    def script(pool: Scripted, token: str, address: str, task: Task) -> list[Message]:
        return [Message(token, FAILED, problem="out of memory", again=True)]

    [end] = ends(list(Spread(Scripted([A, B, C], script), alone=True).run(TASKS[:1]))).values()
    assert (end.problem, [w for w, _ in outcomes(end)]) == ("out of memory", [A.address, C.address])


def test_a_task_that_every_worker_is_lost_with_is_given_up() -> None:
    def script(pool: Scripted, token: str, address: str, task: Task) -> Sequence[Message]:
        if task.name != "t0":
            return well(pool, token, address, task)
        del pool.living[address]
        number = int(address[-1]) + 1
        pool.living[f"tcp://{number}"] = Worker(f"tcp://{number}", "one", "m1")
        return []

    found = ends(list(Spread(Scripted([A], script), alone=True).run(TASKS[:2])))
    assert found["t0"].problem == f"its worker was lost; given up after {MOST_ATTEMPTS} attempts"
    assert [o for _, o in outcomes(found["t0"])] == [LOST] * MOST_ATTEMPTS
    assert found["t1"].value == 1


def test_without_a_worker_tasks_wait_and_are_then_given_up() -> None:
    def script(pool: Scripted, token: str, address: str, task: Task) -> list[Message]:
        pool.living.clear()
        return []

    updates = list(Spread(Scripted([A], script), patience_s=0).run(TASKS[:2]))
    found = ends(updates)
    assert "no worker is left; waits for one" in [u.told for u in updates]
    assert found["t0"].problem == "its worker was lost, and no worker was left to run it, nor came within 0 s"
    assert found["t1"].problem == "no worker was left to run it, nor came within 0 s"
    assert found["t1"].attempts == ()


def test_waiting_for_a_machine_is_told_and_late_messages_change_nothing() -> None:
    def script(pool: Scripted, token: str, address: str, task: Task) -> Sequence[Message]:
        return [Message("0", DONE, value="late"), Message(token, WAITING), *well(pool, token, address, task)]

    updates = list(Spread(Scripted([A], script), alone=True).run(TASKS[1:3]))
    assert "waits on one, where another capture runs" in [u.told for u in updates]
    assert {name: u.value for name, u in ends(updates).items()} == {"t1": 1, "t2": 4}


def test_a_lost_cluster_is_an_error() -> None:
    class Gone(Scripted):
        def workers(self) -> Mapping[str, Worker]:
            raise ClusterError("the scheduler was lost")

    with pytest.raises(ClusterError, match="was lost"):
        list(Spread(Gone([], well)).run(TASKS))


def test_nothing_is_asked_for_no_tasks() -> None:
    unused: Any = None
    assert list(Spread(unused).run([])) == []
