"""CPU time of `fathom-trace --help` against a bare `python -c pass`, side by side in one run.

    python benchmarks/startup.py [ROUNDS] [--all]

The commands alternate, so that what else the machine does touches all alike; with `--all`, the `--help` of every command is among them.
Printed, as a Markdown table: the median of each, the ratio to the first one's and a 95% bootstrap interval of it. The bound of
`fathom-trace --help` is 3. Exit status 1 when the whole interval lies above it.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
from pathlib import Path

BOUND = 3.0
BOUNDED = ("fathom-trace --help", "python -m fathom_trace --help")
SCRIPT = "import re, sys; from fathom_trace.__main__ import main; sys.exit(main())"
"""What the installed script `fathom-trace` does."""
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "fathom-trace --help": [sys.executable, "-c", SCRIPT, "--help"],
    "python -m fathom_trace --help": [sys.executable, "-m", "fathom_trace", "--help"],
    "fathom-trace info --help": [sys.executable, "-c", SCRIPT, "info", "--help"],
}


def every_command() -> dict[str, list[str]]:
    """The `--help` of every command of the program."""
    code = "import sys\nfrom fathom_trace.cli import COMMANDS\nprint(*COMMANDS)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return {f"fathom-trace {name} --help": [sys.executable, "-c", SCRIPT, name, "--help"] for name in done.stdout.split()}


def cpu_ms(command: list[str], environment: dict[str, str]) -> float:
    """User and system time of one run, in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def interval(top: list[float], bottom: list[float], samples: int = 2000) -> tuple[float, float]:
    """95% bootstrap interval of the ratio of medians; rounds are drawn in pairs."""
    generator = random.Random(0)
    rounds = range(len(top))
    ratios = []
    for _ in range(samples):
        drawn = generator.choices(rounds, k=len(top))
        ratios.append(statistics.median(top[k] for k in drawn) / statistics.median(bottom[k] for k in drawn))
    ratios.sort()
    return ratios[int(0.025 * samples)], ratios[int(0.975 * samples)]


def main() -> int:
    """Measure and print; 1 when `--help` is beyond the bound."""
    given = [word for word in sys.argv[1:] if word != "--all"]
    rounds = int(given[0]) if given else 25
    commands = {**COMMANDS, **(every_command() if "--all" in sys.argv else {})}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for command in commands.values():
        cpu_ms(command, environment)
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(cpu_ms(command, environment))
    bare = times["python -c pass"]
    worst = 0.0
    print("| command | CPU time | times `python -c pass` | 95% interval |\n|:---|---:|---:|---:|")
    for name, values in times.items():
        low, high = interval(values, bare)
        worst = max(worst, low) if name in BOUNDED else worst
        ratio = statistics.median(values) / statistics.median(bare)
        print(f"| `{name}` | {statistics.median(values):.1f} ms | {ratio:.2f} | {low:.2f} to {high:.2f} |")
    print(f"\nbound {BOUND:g} x, {rounds} rounds, CPU time, Python {sys.version.split()[0]}")
    return 1 if worst > BOUND else 0


if __name__ == "__main__":
    sys.exit(main())
