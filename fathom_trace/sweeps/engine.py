"""Runs tasks and says what becomes of each: here, one after the other, or spread over the workers of a cluster.

Both ways take the same tasks and yield the same updates. `Here` runs each once. `Spread` gives a worker one task at a time, or, where tasks
must be alone on their machine, a machine; a task whose worker is lost is tried again, and one that fails is tried again on another worker,
up to `MOST_ATTEMPTS` in all. What the workers are, a `Pool` knows: `cluster.py` has that of Dask, the tests have one of their own.
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from fathom_trace.errors import FathomError, one_line

MOST_ATTEMPTS = 3
PATIENCE_S = 60.0
"""How long tasks wait for a worker when none is left."""
POLL_S = 0.5

WAITING, RUNNING, DONE, FAILED, LOST = "waiting", "running", "done", "failed", "lost"
ENDS = (DONE, FAILED, LOST)


@dataclass(frozen=True)
class Task:
    """`function(*arguments)`, under a name that people know it by. `function` is one of this package, which workers have too."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One try at a task: on which host, by which worker (empty: none, but this process), from when to when, and how it ended.

    Times are UTC by the clock of the host, as `2026-11-30T17:00:00.000Z`; the end of a lost one is when that was noticed. `began` is
    empty before it runs, `ended` while it does; `problem` says why it failed or was lost.
    """

    host: str
    worker: str = ""
    began: str = ""
    ended: str = ""
    outcome: str = WAITING
    problem: str = ""


@dataclass(frozen=True)
class Update:
    """What is new of a task: a word of it for people, its attempts so far and, when it `is_over`, what it returned or why it did not."""

    task: Task
    attempts: tuple[Attempt, ...]
    told: str = ""
    is_over: bool = False
    value: Any = None
    problem: str = ""


Updates = Generator[Update, None, None]


class Executor(Protocol):
    """Runs tasks."""

    @property
    def is_remote(self) -> bool:
        """Whether tasks run elsewhere: what they write is not written here."""

    def run(self, tasks: Sequence[Task]) -> Updates:
        """Run all of `tasks`; yields whatever is new of one, lastly that it is over."""


@dataclass(frozen=True)
class Here:
    """Runs tasks in this process, one after the other."""

    is_remote: bool = field(default=False, init=False)

    def run(self, tasks: Sequence[Task]) -> Updates:
        """Run each once; an error that a user can correct ends its task, any other ends all."""
        for task in tasks:
            attempt = Attempt(platform.node(), began=now(), outcome=RUNNING)
            yield Update(task, (attempt,), "...")
            try:
                value = task.function(*task.arguments)
            except FathomError as error:
                text = one_line(error)
                yield Update(task, (replace(attempt, ended=now(), outcome=FAILED, problem=text),), is_over=True, problem=text)
            else:
                yield Update(task, (replace(attempt, ended=now(), outcome=DONE),), is_over=True, value=value)


@dataclass(frozen=True)
class Worker:
    """A worker: its address, the host it says it runs on, and what tells that machine from others."""

    address: str
    host: str
    machine: str


@dataclass(frozen=True)
class Message:
    """What a pool has to say of an attempt, by its token: it `WAITING` for its machine, is `RUNNING`, `DONE`, `FAILED` or `LOST`.

    `at` is the host's own time; `again` says that a failure may be the worker's, not the task's.
    """

    token: str
    state: str
    at: str = ""
    value: Any = None
    problem: str = ""
    again: bool = False


class Pool(Protocol):
    """The workers that `Spread` spreads tasks over."""

    def workers(self) -> Mapping[str, Worker]:
        """Those that live and can be used, by address.

        Raises:
            ClusterError: nobody can tell any more.
        """

    def start(self, token: str, address: str, task: Task) -> None:
        """Have a worker run a task; what becomes of it comes as messages with this token."""

    def drop(self, token: str) -> None:
        """Forget about an attempt."""

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None when none comes in time."""


@dataclass
class _Job:
    task: Task
    attempts: list[Attempt] = field(default_factory=list)
    unfit: set[str] = field(default_factory=set)
    """Places where it failed."""
    token: str = ""
    address: str = ""
    place: str = ""

    def update(self, told: str = "") -> Update:
        return Update(self.task, tuple(self.attempts), told)

    def change(self, **changes: str) -> None:
        self.attempts[-1] = replace(self.attempts[-1], **changes)

    def over(self, value: Any = None, problem: str = "") -> Update:
        return Update(self.task, tuple(self.attempts), is_over=True, value=value, problem=problem)


class Spread:
    """Runs tasks on the workers of a pool; with `alone`, one at a time on a machine."""

    is_remote = True

    def __init__(self, pool: Pool, alone: bool = False, patience_s: float = PATIENCE_S) -> None:
        self.pool, self.alone, self.patience_s = pool, alone, patience_s
        self.waiting: deque[_Job] = deque()
        self.running: dict[str, _Job] = {}
        self.started = 0

    def run(self, tasks: Sequence[Task]) -> Updates:
        """Run all of `tasks`; see `Executor`.

        Raises:
            ClusterError: the cluster is gone.
        """
        self.waiting.extend(_Job(task) for task in tasks)
        deserted_since = None
        while self.waiting or self.running:
            workers = self.pool.workers()
            while message := self.pool.receive(0):
                yield from self._take(message)
            yield from self._lose(workers)
            yield from self._place(workers)
            if workers or self.running:
                deserted_since = None
            elif deserted_since is None:
                deserted_since = time.monotonic()
                yield from (job.update("no worker is left; waits for one") for job in list(self.waiting)[:1])
            elif time.monotonic() - deserted_since > self.patience_s:
                yield from (job.over(problem=self._deserted(job)) for job in self.waiting)
                self.waiting.clear()
            if (self.waiting or self.running) and (message := self.pool.receive(POLL_S)):
                yield from self._take(message)

    def _place(self, workers: Mapping[str, Worker]) -> Iterator[Update]:
        """Start what can be started."""
        busy = {job.place for job in self.running.values()}
        for job in list(self.waiting):
            fit = [w for w in workers.values() if self._place_of(w) not in job.unfit]
            if workers and not fit:
                self.waiting.remove(job)
                yield job.over(problem=job.attempts[-1].problem)
                continue
            free = [w for w in fit if self._place_of(w) not in busy]
            if not free:
                continue
            self.waiting.remove(job)
            self.started += 1
            worker = free[0]
            job.token, job.address, job.place = str(self.started), worker.address, self._place_of(worker)
            job.attempts.append(Attempt(worker.host, worker.address))
            self.running[job.token] = job
            busy.add(job.place)
            self.pool.start(job.token, worker.address, job.task)
            yield job.update()

    def _place_of(self, worker: Worker) -> str:
        return worker.machine if self.alone else worker.address

    def _lose(self, workers: Mapping[str, Worker]) -> Iterator[Update]:
        """Give up the attempts of workers that are gone."""
        for token, job in list(self.running.items()):
            if job.address not in workers:
                self.pool.drop(token)
                yield from self._take(Message(token, LOST, problem="its worker was lost"))

    def _take(self, message: Message) -> Iterator[Update]:
        """What a message changes."""
        job = self.running.get(message.token)
        if job is None:  # of an attempt that was given up
            return
        if message.state == WAITING:
            yield job.update(f"waits on {job.attempts[-1].host}, where another capture runs")
        elif message.state == RUNNING:
            if job.attempts[-1].began:  # a worker of the same address took the lost one's place
                job.change(ended=message.at, outcome=LOST, problem="its worker was lost")
                job.attempts.append(Attempt(job.attempts[-1].host, job.address))
            job.change(began=message.at, outcome=RUNNING)
            yield job.update(f"runs on {job.attempts[-1].host} ({job.address})")
        else:
            del self.running[message.token]
            job.change(ended=message.at or now(), outcome=message.state, problem=message.problem)
            yield from self._end(job, message)

    def _end(self, job: _Job, message: Message) -> Iterator[Update]:
        """What follows from the end of an attempt."""
        if message.state == DONE:
            yield job.over(value=message.value)
        elif message.state == FAILED and not message.again:
            yield job.over(problem=message.problem)
        elif len(job.attempts) >= MOST_ATTEMPTS:
            yield job.over(problem=f"{message.problem}; given up after {len(job.attempts)} attempts")
        else:
            if message.state == FAILED:
                job.unfit.add(job.place)
            self.waiting.appendleft(job)
            yield job.update(f"{message.problem} ({job.attempts[-1].host}, {job.address}); it is tried again elsewhere")

    def _deserted(self, job: _Job) -> str:
        before = f"{job.attempts[-1].problem}, and " if job.attempts else ""
        return f"{before}no worker was left to run it, nor came within {self.patience_s:.0f} s"


def now() -> str:
    """This moment in UTC, as `2026-11-30T17:00:00.000Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
