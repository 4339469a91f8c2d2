"""Feeds damaged and hostile inputs to every reader, and tells what they did: a table, and the inputs of all findings.

    python -m benchmarks.fuzz [READER...] [--inputs 100000] [--seed 1] [--seconds 600] [-o fuzz] [--list]
    python -m benchmarks.fuzz READER --atheris [--seconds 600]

Readers and mutators are those of `tests/fuzzing_targets.py`; what counts as a finding is said in `tests/fuzzing.py`. `--seconds` is
for each reader. The inputs of findings are left in OUTPUT/READER/findings, with the traceback. The exit status is 1 if there are any.

With `--atheris` (pip install atheris) libFuzzer chooses what to mutate, by the lines and comparisons that an input reaches in this project;
half of its mutations are those of the structured mutators. It takes one reader of a single file, and ends at the first finding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = "| reader | inputs | accepted | refused | findings | messages | inputs/processor second | slowest | peak memory |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the readers one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", metavar="READER", help="which; all unless given")
    parser.add_argument("--inputs", type=int, default=100_000, help="mutated inputs of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=1, help="everything follows from it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="most wall time of each reader")
    parser.add_argument("-o", "--output", type=Path, default=Path("fuzz"), help="folder of findings and tallies")
    parser.add_argument("--messages", type=int, default=0, help="how many of the most frequent messages to print")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage")
    parser.add_argument("--list", action="store_true", help="names of the readers")
    given = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if given.atheris:
        return _with_atheris(given.readers, given.seconds, given.output)
    from fuzzing import fuzz
    from fuzzing_targets import targets

    known = targets()
    if given.list:
        print("\n".join(known))
        return 0
    unknown = sorted(set(given.readers) - set(known))
    if unknown:
        parser.error(f"there is no reader {unknown[0]}; --list names them")
    print(HEADER, "|" + "---|" * 9, sep="\n", flush=True)
    found = 0
    for name in given.readers or known:
        folder = (given.output / name).resolve()
        tally = fuzz(known[name], given.inputs, given.seed, folder, given.first, given.seconds)
        (folder / "result.json").write_text(json.dumps(tally.to_json(), indent=1) + "\n", encoding="utf-8")
        rate = tally.inputs / max(tally.processor_seconds, 1e-9)
        print(
            f"| {name} | {tally.inputs:,} | {tally.accepted:,} | {tally.refused:,} | {sum(tally.findings.values()):,} |"
            f" {len(tally.refusals):,} | {rate:,.0f} | {tally.slowest_seconds:.2f} s | {tally.peak_bytes / 1e6:.0f} MB |",
            flush=True,
        )
        for kind, count in tally.findings.most_common():
            print(f"    finding: {count:,} x {kind}", flush=True)
        for message, count in tally.refusals.most_common(given.messages):
            print(f"    message: {count:,} x {message}", flush=True)
        found += len(tally.findings)
    return int(found > 0)


def _with_atheris(readers: Sequence[str], seconds: float, output: Path) -> int:
    """Let libFuzzer look for an input of one reader that raises anything but a `FathomError`."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 3
    from random import Random

    with atheris.instrument_imports(include=["fathom_trace"]):
        from fuzzing import flaw
        from fuzzing_targets import targets

        from fathom_trace.errors import FathomError

        target = targets()[readers[0]]
        seeds = target.seeds()
    folder = (output / f"{target.name}-atheris").resolve()
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    name = next(iter(target.mutate(Random(0), seeds[0], seeds)))
    for number, files in enumerate(seeds):
        if name in files:
            (corpus / str(number)).write_bytes(files[name])
    for other, data in seeds[0].items():
        (folder / "input" / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / "input" / other).write_bytes(data)

    def read(data: bytes) -> None:
        (folder / "input" / name).write_bytes(data)
        try:
            target.read(folder / "input")
        except FathomError as error:
            if flaw(str(error)):
                raise ValueError(f"a message is {flaw(str(error))}") from error

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if seed % 2:
            return bytes(atheris.Mutate(data, most))
        return target.mutate(Random(seed), {**seeds[0], name: data}, seeds).get(name, data)[:most]

    limit = [f"-max_total_time={int(seconds)}"] if seconds < float("inf") else []
    options = ["-timeout=5", "-rss_limit_mb=1500", "-max_len=200000", f"-artifact_prefix={folder}/", *limit]
    atheris.Setup([sys.argv[0], str(corpus), *options], read, custom_mutator=mutate)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
