"""Do all readers end in a value or one clear error on a short seeded round of mutated inputs, and does it get behind seals and marks?

At length: `python -m benchmarks.fuzz`.
"""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pytest
import small
from fuzzing import MOST_CHARACTERS, Files, Target, flaw, fuzz
from fuzzing_hdf5 import lookup3, mended, sealed
from fuzzing_mutations import mutate_bytes, wire_bytes, wire_fields
from fuzzing_targets import ANSWERS, targets, trace_bytes

from fathom_trace.errors import ExportError
from fathom_trace.exporters import REGISTRY

SLOW = {"hdf5": 24, "hdf5-lazy": 16, "check-table": 20, "check-scale_sim": 30}
"""Inputs of readers that take long for one; of the others, `INPUTS`."""
INPUTS = 40
SEED = 7

REACHED = {
    "hdf5": ("trace is damaged: ", 0.2), "hdf5-lazy": ("trace is damaged: ", 0.1), "protobuf": ("trace is damaged: ", 0.1),
    "scenario-yaml": ("scenario", 0.1), "accelerator-yaml": (r"FILE: \w+", 0.05), "sweep-yaml": (r"FILE: (entry|defaults|\w+)", 0.05),
    "imagenet": ("JPEG", 0.15), "mnist": ("promises", 0.1), "timit": ("header|line N", 0.1), "babi": ("line N", 0.3),
}  # fmt: skip
"""The least share of a reader's inputs that is refused for what lies behind marks, seals and grammar, by what the message then has."""

LENIENT = ("manifest", "report-marker")
"""Readers of a file that tells of earlier work: what cannot be read counts as not told."""


@pytest.mark.parametrize("name", list(targets()))
def test_a_short_round_finds_nothing(name: str, tmp_path: Path) -> None:
    """No crash, other exception, flood, hang or memory; some inputs are refused, and by more than one message."""
    count = SLOW.get(name, INPUTS)
    tally = fuzz(targets()[name], count, SEED, tmp_path)
    assert not tally.findings, f"{dict(tally.findings)}; inputs: {sorted(p.name for p in (tmp_path / 'findings').iterdir())}"
    assert tally.accepted + tally.refused > 0.5 * tally.inputs
    assert tally.inputs >= count * 0.9  # an HDF5 that is changed through HDF5 itself may end that in a crash
    if name in LENIENT:
        return
    assert tally.refused > count / 5
    assert len(tally.refusals) >= 3
    if name in REACHED:
        pattern, share = REACHED[name]
        assert tally.share_refused_by(pattern) >= share, dict(tally.refusals)
    else:
        most = max(tally.refusals.values())
        assert most < 0.7 * tally.inputs, dict(tally.refusals)


def test_every_exporter_is_a_reader_here() -> None:
    """`check` of each, and the results of each whose target answers."""
    assert {f"check-{name}" for name in REGISTRY.names()} <= set(targets())
    assert set(ANSWERS) == {name for name in REGISTRY.names() if hasattr(REGISTRY.load(name), "read_results")}


# --- the fuzzer itself --------------------------------------------------------------------------------------------------------------------


def deeds() -> list[tuple[str, Any]]:
    """What a reader must not do, and what is told of it."""

    def crash(_: Path) -> None:
        os.abort()

    def hang(_: Path) -> None:
        while True:
            pass

    def swell(_: Path) -> int:
        return len(bytearray(b"x") * (90 << 20))

    def speak(_: Path) -> None:
        os.write(1, b"hello\n")

    def warn(_: Path) -> None:
        warnings.warn("odd", RuntimeWarning, stacklevel=1)

    def fail(_: Path) -> None:
        raise KeyError("x")

    def mumble(_: Path) -> None:
        error = ExportError("x")
        error.args = ("two\nlines",)
        raise error

    def escape(folder: Path) -> None:
        (folder.parents[2] / "elsewhere").write_text("x")

    def call(_: Path) -> None:
        socket.socket().close()

    return [
        ("native: SIGABRT", crash), ("more than 0.25 s", hang), ("memory: more than 50 MiB", swell), ("prints", speak),
        ("warns RuntimeWarning: odd", warn),
        ("KeyError in", fail), ("message more than one line", mumble), ("does open for writing", escape), ("does socket", call),
    ]  # fmt: skip


@pytest.mark.parametrize(("told", "deed"), deeds(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_finding_is_told_and_its_input_kept(told: str, deed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of four inputs does it; the fourth is read all the same."""
    monkeypatch.setattr("fuzzing.MOST_SECONDS", 0.25)
    monkeypatch.setattr("fuzzing.MOST_BYTES", 50 << 20)

    def mutate(random: Random, files: Files, others: object) -> Files:
        numbers.append(0)
        return {"a": b"bad" if len(numbers) == 3 else b"good"}

    def read(folder: Path) -> None:
        if (folder / "a").read_bytes() == b"bad":
            deed(folder)

    numbers: list[int] = []
    work = tmp_path / "x" / "y"
    tally = fuzz(Target("x", lambda: [{"a": b"seed"}], mutate, read), 4, 0, work)
    assert [kind for kind in tally.findings if kind.startswith(told)], dict(tally.findings)
    assert tally.inputs == 4
    (kept,) = (work / "findings").iterdir()
    assert (kept / "a").read_bytes() == b"bad"
    assert told in (kept / "FINDING.txt").read_text()


def test_the_same_seed_makes_the_same_round(tmp_path: Path) -> None:
    rounds = [fuzz(targets()["accelerator-yaml"], 40, 3, tmp_path / str(i)).to_json() for i in range(2)]
    for each in rounds:
        del each["seconds"], each["processor_seconds"], each["slowest_seconds"], each["peak_bytes"]
    assert rounds[0] == rounds[1]
    assert json.dumps(rounds[0])


def test_a_limit_of_time_ends_a_round_early(tmp_path: Path) -> None:
    target = Target("x", lambda: [{"a": b"seed"}], lambda *_: {"a": b"x"}, lambda _: time.sleep(0.01))
    assert 0 < fuzz(target, 10**6, 0, tmp_path, most_seconds=0.3).inputs < 1000


def test_messages_have_flaws() -> None:
    assert [flaw(text) for text in ("", "a\nb", "a\x1b", "x" * (MOST_CHARACTERS + 1), "fine")] == [
        "empty", "more than one line", "not printable", "too long", "",
    ]  # fmt: skip


def test_checksums_of_hdf5_are_mended() -> None:
    """Of what HDF5 wrote they are right as they are; a changed byte of the root's header, between two of them, is covered again."""
    image = trace_bytes(small.diamond(), ".h5")[:-28]
    assert mended(image) == image
    at = image.find(b"OHDR")
    changed = bytearray(image)
    changed[at + 8] ^= 1
    assert mended(bytes(changed)) != bytes(changed)
    assert len(sealed(image)) == len(image) + 28
    # the four values that lookup3.c itself gives in `driver5`, for a starting value of 0
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551


def test_wire_fields_are_put_together_as_they_were() -> None:
    data = trace_bytes(small.diamond(), ".pb")
    size = data[0]
    fields = wire_fields(data[1 : 1 + size])
    assert fields
    assert wire_bytes(fields) == data[1 : 1 + size]
    assert wire_fields(b"\xff") is None
    assert all(isinstance(mutate_bytes(Random(n), b"abc"), bytes) for n in range(100))
