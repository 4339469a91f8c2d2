"""Is an export to Ramulator the trace's traffic, in both of its dialects?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fathom_trace.costs import costs
from fathom_trace.errors import ExportError, OptionError
from tests.memory_files import RAMULATOR, Memory, case_c19, case_c20, export, of_execution, ramulator, regions, rows
from tests.test_addresses import random_program, two_layers


def test_c19_is_4_requests_in_the_dialect_of_load_and_store(tmp_path: Path) -> None:
    report = export(RAMULATOR, case_c19(), tmp_path / "out", placement="reported")
    assert rows(tmp_path / "out") == ["LD 0x1000", "LD 0x1040", "ST 0x2000", "ST 0x2040"]
    assert any("ends when the last request is sent" in note for note in report.notes)


def test_c20_is_6_requests(tmp_path: Path) -> None:
    export(RAMULATOR, case_c20(), tmp_path / "out")
    assert [r.writes for r in ramulator(tmp_path / "out")] == [False] * 4 + [True] * 2


def test_hbm2_has_bursts_of_32_bytes(tmp_path: Path) -> None:
    """96, 120 and 80 bytes in bursts of 32: 3 + 4 + 3."""
    export(RAMULATOR, case_c20(), tmp_path / "out", burst_bytes="32")
    assert len(rows(tmp_path / "out")) == 10


def test_padding_follows_and_belongs_to_nothing(tmp_path: Path) -> None:
    report = export(RAMULATOR, case_c19(), tmp_path / "out", placement="reported", padding="3")
    assert rows(tmp_path / "out")[4:] == ["LD 0x1000"] * 3
    assert report.settings["written"]["rows"] == 4
    assert of_execution(tmp_path / "out") == {1: (1, 4)}
    assert any("the last 3 rows are padding" in note for note in report.notes)


@pytest.mark.parametrize("seed", range(4))
def test_each_execution_has_its_rows(tmp_path: Path, seed: int) -> None:
    trace = random_program(seed, addresses=True)
    export(RAMULATOR, trace, tmp_path / "out")
    found, where, expected = ramulator(tmp_path / "out"), of_execution(tmp_path / "out"), costs(trace, 0)
    assert [first for first, _ in sorted(where.values())] == [1, *(last + 1 for _, last in sorted(where.values())[:-1])]
    assert sorted(where, key=lambda e: where[e]) == sorted(where)
    for execution, (first, last) in where.items():
        mine = Counter(r.writes for r in found[first - 1 : last])
        assert 64 * mine[False] >= expected.bytes_read[execution] > 64 * mine[False] - 64 * 8
        assert 64 * mine[True] >= expected.bytes_written[execution] > 64 * mine[True] - 64 * 3
    counted = Counter((r.address // 64, r.writes) for r in found)
    for region in regions(tmp_path / "out"):
        begin, size = int(region["address"]), int(region["size_bytes"])
        inside = range(begin // 64, (begin + size - 1) // 64 + 1)
        assert [sum(counted[b, w] for b in inside) for w in (False, True)] == [int(region["reads"]), int(region["writes"])]


# --- SimpleO3 -----------------------------------------------------------------------------------------------------------------------


def test_simple_o3_pairs_each_write_with_a_read_of_its_execution(tmp_path: Path) -> None:
    """C20: 4 loads, of which the first two carry the 2 stores; all decimal."""
    report = export(RAMULATOR, case_c20(), tmp_path / "out", frontend="simple_o3", bubbles="7")
    assert rows(tmp_path / "out") == ["7 0 256", "7 64 320", "7 128", "7 192"]
    assert report.settings["extra_loads"] == 0
    assert of_execution(tmp_path / "out") == {2: (1, 4)}


def test_simple_o3_loads_what_is_stored_where_nothing_else_is_read(tmp_path: Path) -> None:
    """A read of 64 bytes and a write of 192, then a write of 64 alone: 3 stores with 1 load of their own, 1 without any."""
    memory = Memory()
    x = memory.op("x", "_Arg", [], [16])
    memory.op("wide", "Tile", [x], [48])
    memory.op("zeros", "ZerosLike", [x], [16])
    report = export(RAMULATOR, memory.build(), tmp_path / "out", frontend="simple_o3")
    parts = [[int(cell) for cell in row.split(" ")] for row in rows(tmp_path / "out")]
    assert [p[0] for p in parts] == [0] * 4
    assert [p[1] == p[2] for p in parts] == [False, True, True, True]
    assert report.settings["extra_loads"] == 3
    assert any("3 loads are of what the same row stores" in a for a in report.approximations)
    written = report.settings["written"]
    assert (written["rows"], written["reads"], written["writes"]) == (4, 4, 4)


@pytest.mark.parametrize("seed", range(6))
def test_simple_o3_has_the_requests_of_load_store(tmp_path: Path, seed: int) -> None:
    """The same stores in the same order; the same loads, and besides them only loads of what the same row stores."""
    trace = random_program(seed, addresses=True)
    export(RAMULATOR, trace, tmp_path / "plain")
    report = export(RAMULATOR, trace, tmp_path / "core", frontend="simple_o3")
    plain, where = ramulator(tmp_path / "plain"), of_execution(tmp_path / "plain")
    parts = [[int(cell) for cell in row.split(" ")] for row in rows(tmp_path / "core")]
    extra = 0
    for execution, (first, last) in of_execution(tmp_path / "core").items():
        mine = plain[where[execution][0] - 1 : where[execution][1]]
        reads, writes = ([r.address for r in mine if r.writes == side] for side in (False, True))
        loads = [*reads, *writes[len(reads) :]]
        assert [p[1] for p in parts[first - 1 : last]] == loads
        assert [p[2] for p in parts[first - 1 : last] if len(p) == 3] == writes
        extra += len(loads) - len(reads)
    assert report.settings["extra_loads"] == extra > 0


# --- errors -------------------------------------------------------------------------------------------------------------------------


def test_options_are_checked(tmp_path: Path) -> None:
    for settings in ({"bubbles": -1}, {"bubbles": 2**31}, {"padding": -1}, {"burst_bytes": 3}, {"max_requests": -5}):
        with pytest.raises(OptionError, match=f"option '{next(iter(settings))}'"):
            RAMULATOR.Options(**{"frontend": "simple_o3", **settings})
    with pytest.raises(OptionError, match="is of frontend=simple_o3"):
        RAMULATOR.Options(bubbles=3)
    with pytest.raises(OptionError, match="is of frontend=load_store"):
        RAMULATOR.Options(frontend="simple_o3", padding=3)
    with pytest.raises(ExportError, match="ramulator: 33 requests"):
        export(RAMULATOR, two_layers(), tmp_path / "a", max_requests="32")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("LD 0x40\n", "ST 0x40\n", "reads, export.json says"),
        ("LD 0x40\n", "LD 64\n", "an address in hexadecimal"),
        ("LD 0x40\n", "R 0x40\n", "it has not LD or ST"),
        ("LD 0x40\n", "LD 0x80\n", "reads of the region at 0x0"),
        ("LD 0x40\n", "LD 0x44\n", "is no burst of a region"),
        ("LD 0x40\n", "LD 0x40 0\n", "it has not 2 fields"),
        ("LD 0x40\n", "", "rows of padding"),
        ("ST 0x140\nLD 0x0\n", "ST 0x140\nLD 0x40\n", "is no padding"),
        ("ST 0x140\nLD 0x0\n", "ST 0x140\n", "1 rows of padding, export.json says 2"),
    ],
)
def test_its_parser_finds_what_was_changed(tmp_path: Path, old: str, new: str, problem: str) -> None:
    export(RAMULATOR, case_c20(), tmp_path / "out", padding="2")
    file = tmp_path / "out" / "memory.trace"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(RAMULATOR.check(tmp_path / "out").problems)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("7 0 256\n", "8 0 256\n", "8 bubbles, export.json says 7"),
        ("7 0 256\n", "7 0x0 256\n", "leading zeros"),
        ("7 0 256\n", "7 0\n", "writes, export.json says"),
        ("7 0 256\n", "7 64 256\n", "address_sum in its rows"),
        ("7 128\n", "7 256\n", "reads of the region"),
        ("7 128\n", "7\n", "it has not 2 to 3 fields"),
    ],
)
def test_its_parser_of_simple_o3_finds_what_was_changed(tmp_path: Path, old: str, new: str, problem: str) -> None:
    export(RAMULATOR, case_c20(), tmp_path / "out", frontend="simple_o3", bubbles="7")
    file = tmp_path / "out" / "memory.trace"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert problem in "; ".join(RAMULATOR.check(tmp_path / "out").problems)
