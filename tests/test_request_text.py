"""Are rows of requests written as Python writes them, and is what breaks their grammar refused?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fathom_trace.request_text import Decimal, Hexadecimal, MalformedError, Words, blocks, fields, lines

EDGES = [0, 1, 9, 10, 15, 16, 255, 256, 9_999, 10_000, 65_535, 65_536, 2**31, 10**12, 2**53 + 1, 10**19, 2**63 - 1, 2**63, 2**64 - 1]


def numbers(count: int, seed: int) -> np.ndarray:
    """The edges and numbers of every length."""
    rng = np.random.default_rng(seed)
    return np.array(
        [*EDGES, *(int(v) >> int(s) for v, s in zip(rng.integers(0, 2**63, count), rng.integers(0, 63, count), strict=True))],
        np.uint64,
    )


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_rows_are_those_of_python(count: int) -> None:
    a, b = numbers(count, 1), numbers(count, 2)[::-1]
    codes, known = np.arange(len(a)) % 3, np.arange(len(a)) % 4 > 0
    words = (b"LD", b"STORE", b"x")
    made = lines([Hexadecimal(a), Words(codes, words), Decimal(b), Decimal(a, known)])
    rows = zip(a.tolist(), codes.tolist(), b.tolist(), known.tolist(), strict=True)
    assert made.decode() == "".join(f"0x{x:x} {words[c].decode()} {y}{f' {x}' if k else ''}\n" for x, c, y, k in rows)


def test_small_numbers_are_not_padded() -> None:
    assert lines([Hexadecimal(np.array([0, 64], np.uint64)), Decimal(np.array([7, 10], np.uint64))]) == b"0x0 7\n0x40 10\n"
    assert lines([Decimal(np.zeros(0, np.uint64))]) == b""


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    a, b = numbers(30_000, 3), numbers(30_000, 4)
    codes, known = np.arange(len(a)) % 2, np.arange(len(a)) % 3 > 0
    path = tmp_path / "rows"
    path.write_bytes(lines([Hexadecimal(a), Words(codes, (b"READ", b"WRITE")), Decimal(b, known)]))
    got: list[list[int]] = [[], [], [], []]
    for first, raw in blocks(path):
        assert first == len(got[0])
        found = fields(first, raw, 2, 3)
        got[0] += found.numbers(0, 16).tolist()
        got[1] += found.words(1, (b"READ", b"WRITE")).tolist()
        got[2] += found.numbers(2, 10, optional=True).tolist()
        got[3] += (found.end[:, 2] > found.begin[:, 2]).tolist()
    assert got[0] == a.tolist()
    assert got[1] == codes.tolist()
    assert got[2] == np.where(known, b, 0).tolist()
    assert got[3] == known.tolist()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"0x40 READ", r"row 2 \('0x40 READ'\): it has not 3 fields"),
        (b"0x40 READ 5 6", "it has not 3 fields"),
        (b"0x40  READ 5", "it has not 3 fields|a field is empty"),
        (b" READ 5", "a field is empty"),
        (b"", "it has not 3 fields"),
        (b"40 READ 5", "it has not an address in hexadecimal after 0x"),
        (b"0X40 READ 5", "it has not an address"),
        (b"0x READ 5", "it has not an address"),
        (b"0x4G READ 5", "it has not an address"),
        (b"0x4A READ 5", "it has not an address"),
        (b"0x040 READ 5", "leading zeros"),
        (b"0x12345678123456789 READ 5", "too long"),
        (b"0x40 READ 18446744073709551616", "too large"),
        (b"0x40 READ 99999999999999999999", "too large"),
        (b"0x40 READ 05", "leading zeros"),
        (b"0x40 READ -5", "it has not a decimal number"),
        (b"0x40 READ 5a", "it has not a decimal number"),
        (b"0x40 READ 5.0", "it has not a decimal number"),
        (b"0x40 READ 5\r", "it has not a decimal number"),
        (b"0x40 read 5", "it has not READ or WRITE"),
        (b"0x40 READER 5", "it has not READ or WRITE"),
        (b"0x40 REA 5", "it has not READ or WRITE"),
        (b"0x40\tREAD 5", "it has not 3 fields"),
    ],
)
def test_a_broken_row_is_refused(row: bytes, problem: str) -> None:
    raw = np.frombuffer(b"0x0 READ 1\n" + row + b"\n0x80 WRITE 9\n", np.uint8)

    def read() -> None:
        found = fields(0, raw, 3, 3)
        found.numbers(0, 16)
        found.words(1, (b"READ", b"WRITE"))
        found.numbers(2, 10)

    with pytest.raises(MalformedError, match=problem):
        read()


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"0x0 READ 1\n0x4")
    with pytest.raises(MalformedError, match="row 2 has no line end"):
        list(blocks(path))
    path.write_bytes(b"")
    assert list(blocks(path)) == []
