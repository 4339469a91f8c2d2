"""Runs tasks on the workers of a Dask cluster, which has to be trusted: it runs what it is sent, and what it sends is unpickled.

Dask carries tasks and results; which worker takes what and what is tried again, `engine.Spread` says, so that each attempt is known.
"""

from __future__ import annotations

import logging
import platform
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from fathom_trace import __version__
from fathom_trace.errors import ClusterError, one_line
from fathom_trace.sweeps.apart import run_task, stop
from fathom_trace.sweeps.engine import ENDS, FAILED, LOST, Message, Spread, Task, Updates, Worker

T = TypeVar("T")

CONNECT_S = 5
"""How long the scheduler may take to answer."""
WORKERS_S = 20.0
"""How long to wait for a first worker."""
STOP_S = 5.0

PROBE = """(lambda platform, metadata, util, path: {
    'host': platform.node(),
    'machine': path.exists('/proc/sys/kernel/random/boot_id') and open('/proc/sys/kernel/random/boot_id').read().strip(),
    'python': platform.python_version(),
    'tensorflow': ([d.version for d in metadata.distributions(name='tensorflow')] + [''])[0],
    'fathom-trace': __import__('fathom_trace').__version__ if util.find_spec('fathom_trace') else '',
})(__import__('platform'), __import__('importlib.metadata').metadata, __import__('importlib.util').util, __import__('os').path)"""
"""What a worker is, as text: one of another Python, or without this package, could read nothing else. Containers on a machine share its
boot, and so its times."""


@dataclass(frozen=True)
class Cluster:
    """Runs tasks on the cluster of the scheduler at `address`; with `alone`, one at a time on a machine.

    A task's function is given an `apart.Errand` before its arguments; its `shared` is sent to each worker once. `tell` is told of workers
    that cannot be used.
    """

    address: str
    alone: bool
    tell: Callable[[str], None]
    needs_tensorflow: bool = False
    shared: Any = None
    is_remote: bool = True

    def run(self, tasks: Sequence[Task]) -> Updates:
        """Run all of `tasks`; see `engine.Executor`. What runs is stopped when the iteration ends early.

        Raises:
            ClusterError: the cluster cannot be reached, has no workers or is lost, or a worker lacks what is needed.
        """
        if tasks:
            with connected(self) as pool:
                yield from Spread(pool, self.alone).run(tasks)


@contextmanager
def connected(cluster: Cluster) -> Iterator[DaskPool]:
    """The workers of a cluster; disconnects at the end, having stopped what still runs."""
    try:
        from distributed import Client
    except ImportError:
        raise ClusterError("--scheduler needs distributed; install it with: pip install 'fathom-trace[cluster]'") from None
    client = pool = None
    with _quiet():
        try:
            try:
                client = Client(cluster.address, timeout=CONNECT_S, set_as_default=False, name="fathom-trace")
            except (OSError, ValueError, TypeError) as error:
                raise ClusterError(
                    f"no Dask scheduler answers at {cluster.address} ({one_line(error)}); "
                    "start one with `dask scheduler`, and give its address"
                ) from None
            pool = DaskPool(client, cluster)
            pool.await_workers()
            yield pool
        finally:
            if pool is not None:
                pool.stop()
            if client is not None:
                client.close(timeout=STOP_S)


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, Dask's loggers say nothing: what goes wrong is told in one line."""
    names = ["distributed", *(name for name in logging.root.manager.loggerDict if name.startswith("distributed."))]
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class DaskPool:
    """The workers of a Dask cluster; see `engine.Pool`."""

    def __init__(self, client: Any, cluster: Cluster) -> None:
        self.client, self.cluster = client, cluster
        self.name = f"fathom-trace-{uuid.uuid4().hex}"
        self.known: dict[str, Worker] = {}
        self.refused: set[str] = set()
        self.futures: dict[str, Any] = {}
        self.shared: dict[str, Any] = {}
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.wanted = wanted_versions(cluster.needs_tensorflow)
        self._ask(client.subscribe_topic, self.name, self._told)

    def await_workers(self) -> None:
        """Wait for a first worker.

        Raises:
            ClusterError: none comes, or one that is there lacks what is needed.
        """
        end = time.monotonic() + WORKERS_S
        while not self.workers(refuse=True):
            if time.monotonic() > end:
                where = self.cluster.address
                raise ClusterError(f"the scheduler at {where} has no workers; start some with `dask worker {where}`")
            time.sleep(0.2)

    def workers(self, refuse: bool = False) -> Mapping[str, Worker]:
        """Those that live and can be used; one that comes later and cannot be is left out, and told of, unless `refuse` is set."""
        living = self._ask(self.client.nthreads)
        new = [address for address in living if address not in self.known and address not in self.refused]
        found = self._ask(self.client.run, eval, PROBE, workers=new, on_error="return") if new else {}
        for address, said in found.items():
            if not isinstance(said, dict):  # it ended just now; if it did not, it is asked again
                continue
            problem = misfit(said, self.wanted)
            if problem and refuse:
                raise ClusterError(f"worker {address} on {said['host']} {problem}")
            if problem:
                self.refused.add(address)
                self.cluster.tell(f"worker {address} on {said['host']} is left out: it {problem}")
            else:
                self.known[address] = Worker(address, said["host"], said["machine"] or said["host"])
        self.known = {address: worker for address, worker in self.known.items() if address in living}
        return self.known

    def start(self, token: str, address: str, task: Task) -> None:
        """Submit a task for one worker alone."""
        shared = None
        if self.cluster.shared is not None:
            if address not in self.shared:
                self.shared[address] = self._ask(self.client.scatter, self.cluster.shared, workers=[address], hash=False)
            shared = self.shared[address]
        words = (self.name, token, self.cluster.alone, task.function, task.arguments, shared)
        only = {"workers": [address], "allow_other_workers": False, "pure": False, "retries": 0}
        future = self._ask(self.client.submit, run_task, *words, key=f"{self.name}-{token}", **only)
        self.futures[token] = future
        future.add_done_callback(lambda done: self.messages.put(_message(token, done)))

    def drop(self, token: str) -> None:
        """Cancel an attempt."""
        future = self.futures.pop(token, None)
        if future is not None:
            future.cancel()

    def receive(self, timeout_s: float) -> Message | None:
        """The next message."""
        try:
            message = self.messages.get(timeout=timeout_s) if timeout_s else self.messages.get_nowait()
        except queue.Empty:
            return None
        if message.state in ENDS and message.token in self.futures:
            self.futures.pop(message.token).release()
        return message

    def stop(self) -> None:
        """End what still runs, here and there."""
        if not self.futures:
            return
        for token in list(self.futures):
            self.drop(token)
        told = threading.Thread(target=self._stop_there, daemon=True)  # a worker that hangs must not hold up the end
        told.start()
        told.join(STOP_S)

    def _stop_there(self) -> None:
        try:
            self.client.run(stop, self.name, workers=list(self.known), on_error="ignore")
        except Exception as error:
            self.cluster.tell(f"workers could not be told to stop ({one_line(error)}); they end with their captures")

    def _told(self, event: tuple[float, Any]) -> None:
        """An event that a worker logged."""
        _, said = event
        if isinstance(said, dict) and {"token", "state", "at"} <= said.keys():
            self.messages.put(Message(str(said["token"]), str(said["state"]), str(said["at"])))

    def _ask(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Ask the scheduler for something.

        Raises:
            ClusterError: it is gone.
        """
        try:
            return function(*arguments, **named)
        except (OSError, RuntimeError) as error:
            raise ClusterError(
                f"the scheduler at {self.cluster.address} was lost ({one_line(error)}); what is done is kept: give the same command again"
            ) from None


def wanted_versions(needs_tensorflow: bool) -> dict[str, str]:
    """What workers must have, by name: what is here; empty where that is nothing."""
    wanted = {"fathom-trace": __version__, "python": _minor(platform.python_version())}
    return wanted | ({"tensorflow": _version_here("tensorflow")} if needs_tensorflow else {})


def misfit(said: Mapping[str, Any], wanted: dict[str, str]) -> str:
    """What a worker lacks; empty where it is fit. Where TensorFlow is not installed here, the first worker's becomes what is wanted."""
    for name, release in wanted.items():
        found = _minor(said[name]) if name == "python" else said[name]
        if not found:
            return f"has no {name}; install the same there as here, {name} {release}".rstrip()
        if not release:
            wanted[name] = found
        elif found != release:
            return f"has {name} {found}, and {release} is wanted; install the same everywhere"
    return ""


def _message(token: str, done: Any) -> Message:
    """What became of a future."""
    from distributed import KilledWorker

    try:
        if done.status == "finished":
            return Message(token, **done.result())
        if done.status == "error":
            error = done.exception()
            if isinstance(error, KilledWorker):
                return Message(token, LOST, problem="its worker was lost")
            return Message(token, FAILED, problem=one_line(f"{type(error).__name__}: {error}"), again=True)
    except Exception as error:
        return Message(token, LOST, problem=f"its result was lost ({one_line(f'{type(error).__name__}: {error}')})")
    return Message(token, LOST, problem="it was lost")


def _minor(release: str) -> str:
    """`3.11` of `3.11.7`."""
    return ".".join(release.split(".")[:2])


def _version_here(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
