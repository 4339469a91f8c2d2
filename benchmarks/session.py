"""Runs the commands of README.md's session in an empty folder, with the `fathom-trace` on the path, and puts their output in place.

    python benchmarks/session.py

Run it on a machine that does nothing else: the times in the README are those that it prints.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def session(commands: list[str]) -> str:
    """What a terminal shows of the commands, run one after the other."""
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            print(f"$ {command}", file=sys.stderr)
            done = subprocess.run(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
            shown.append(f"$ {command}\n{done.stdout.rstrip()}\n")
    return "\n".join(shown)


def main() -> int:
    """Replace the session in the README."""
    text = README.read_text(encoding="utf-8")
    [old] = BLOCK.findall(text)
    commands = [line.removeprefix("$ ") for line in old.splitlines() if line.startswith("$ ")]
    new = session(commands)
    README.write_text(BLOCK.sub(lambda _: new, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
