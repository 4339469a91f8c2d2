"""Do JSON, YAML, gzip, names and sizes that others wrote stay within bounds? Each is a kind that the fuzzer found, or its cause."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pytest
from fuzzing_hdf5 import sealed
from fuzzing_mutations import zeros
from fuzzing_targets import answered, example, exported, framed, tiny

from fathom_trace import exporting, steps, store
from fathom_trace.data import babi, imagenet, mnist, timit
from fathom_trace.errors import (
    MOST_CHARACTERS,
    DataError,
    ExportError,
    FathomError,
    ScenarioError,
    TraceFileError,
    UnknownNameError,
    printable,
)
from fathom_trace.exporter import MOST_PROBLEMS, REPORT_NAME, CheckReport, read_layer_map, read_report
from fathom_trace.loops.projections import MOST_COUNTED, distinct
from fathom_trace.terminal import print_pairs, print_table
from fathom_trace.untrusted import brief, is_inside, read_json, read_yaml, whole_number
from fathom_trace.whatif.documents import read_document
from fathom_trace.whatif.scenario import Context, parse_scenario
from fathom_trace.whatif.selection import parse_selection
from fathom_trace.whatif.sweep import parse_sweep

LONG = "9" * 5000


def test_a_message_is_one_printable_line_of_bounded_length() -> None:
    """Line ends, terminal controls and directions are escaped; the middle of a long one goes, the advice at its end stays."""
    error = FathomError("a\nb\r\x1b[2J\u2028\u202e\x00\x85 é 日本")
    assert str(error) == "a\\nb\\r\\x1b[2J\\u2028\\u202e\\x00\\x85 é 日本"
    long = str(ScenarioError("'" + "x" * 100_000 + "' is no factor; write a number"))
    assert len(long) == MOST_CHARACTERS
    assert long.startswith("'xxx")
    assert long.endswith("xxx' is no factor; write a number")
    assert len(str(FathomError("\n" * 100_000))) <= MOST_CHARACTERS
    assert printable("as it is") == "as it is"
    assert "\n" not in str(UnknownNameError("option", "a\nb" * 10_000, ["a", "b"]))


def test_problems_of_a_check_are_printable_and_not_too_many() -> None:
    found = CheckReport((), {}, ("a\nb", *map(str, range(MOST_PROBLEMS + 9))))
    assert found.problems[0] == "a\\nb"
    assert found.problems[-1] == "and 10 more"
    assert len(found.problems) == MOST_PROBLEMS + 1


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, LONG, "", "{", "\ufeff{}", "[" * 5000 + "]" * 5000])
def test_json_of_any_depth_and_digits_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_json_has_no_nan_where_none_was_written() -> None:
    assert read_json("[NaN, 1e999]")[1] == float("inf")
    for text in ("NaN", "[Infinity]", "[-Infinity]"):
        with pytest.raises(ValueError, match="is no JSON"):
            read_json(text, with_nan=False)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 9)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "its aliases stand for more than"), (MERGES, "are not merged"), ("&a [*a]", "stands for what holds it"),
        ("a: &a {b: *a}", "stands for what holds it"), ("[" * 5000 + "]" * 5000, "."), ("!!python/object/apply:os.system ['true']", "."),
        ("2001-99-99", "."), (LONG, "."), ("a: [", "."), ("\0", "."), ("!!binary x", "."), ("? [a]\n: b", "."), ("- !!float x", "."),
    ],
)  # fmt: skip
def test_yaml_that_is_none_or_too_much_is_a_value_error(text: str, message: str) -> None:
    """Within 60 MB: as many values as 9^9 would take terabytes, 9^9 pairs of merged mappings too."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            read_yaml(text)
        assert tracemalloc.get_traced_memory()[1] < 60 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


def test_aliases_as_simulators_write_them_are_read() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x\nc: [*x, *x]") == {"a": [1, 2], "b": [1, 2], "c": [[1, 2], [1, 2]]}


def test_what_is_quoted_is_brief() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep] * 9
    assert len(brief(deep)) < 500
    assert len(brief("x" * 10**6)) < 500
    assert brief("m") == "m"
    assert brief(int("f" * 9000, 16))


def test_names_of_files_that_lead_elsewhere_are_told() -> None:
    for name in ("a", "a.csv", "plugins/profile/a.pb", "..a", "a..b"):
        assert is_inside(name)
    for name in ("", "/", "/etc/passwd", "..", "../a", "a/../../b", "a\0", "a\n", "..\\a"):
        assert not is_inside(name)


# --- exports ------------------------------------------------------------------------------------------------------------------------------


def put(folder: Path, name: str, changed: dict[str, bytes] | None = None) -> Path:
    """An export of `tiny` in a folder."""
    for file, data in {**dict(exported(name)[0]), **(changed or {})}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(data)
    return folder


def with_report(name: str, change: Callable[[dict[str, Any]], Any]) -> dict[str, bytes]:
    """`export.json` of an export, changed."""
    report = json.loads(dict(exported(name)[0])[REPORT_NAME])
    change(report)
    return {REPORT_NAME: json.dumps(report).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(files=["../../x"]), "'../../x' is no name of a file in its folder"),
        (lambda r: r.update(files=["/etc/passwd"]), "'/etc/passwd' is no name of a file"),
        (lambda r: r.update(files=[3]), "'3' is no name of a file"),
        (lambda r: r.update(files="ab"), "files is of another type"),
        (lambda r: r.update(exporter=None), "exporter is of another type"),
        (lambda r: r.update(settings=[]), "settings is of another type"),
        (lambda r: r.update(layers={}), "layers is of another type"),
        (lambda r: r["layers"][0].update(place="../x.csv:2"), r"is in '../x.csv:2', which is no file of the export"),
        (lambda r: r["layers"][0].update(executions=[]), "has no executions"),
        (lambda r: r["layers"][0].update(executions=[-1]), "has no executions"),
        (lambda r: r["layers"][0].update(count=0), "stands for none"),
        (lambda r: r["layers"][0].update(time_ns=float("nan")), "NaN is no JSON"),
    ],
)
def test_a_report_with_parts_of_another_kind_is_refused(change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path) -> None:
    put(tmp_path, "scale_sim", with_report("scale_sim", change))
    with pytest.raises(ExportError, match=message):
        read_layer_map(tmp_path)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b"3", b'["exporter", "layers", "skipped"]', b"\xff", LONG.encode()]
)
def test_a_report_that_is_none_is_one_error(data: bytes, tmp_path: Path) -> None:
    put(tmp_path, "scale_sim", {REPORT_NAME: data})
    with pytest.raises(ExportError, match="is not an export report"):
        read_report(tmp_path)


def refuses(folder: Path) -> bool:
    """A check finds problems, or ends in an error."""
    try:
        return not exporting.check(folder)[1].ok
    except FathomError:
        return True


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("chakra", lambda r: r["layers"][0].update(executions=["x"])),
        ("dramsim3", lambda r: r["settings"].update(burst_bytes=0)),
        ("ramulator", lambda r: r["settings"].update(burst_bytes=10**30)),
        ("ramulator", lambda r: r["settings"].update(written={})),
        ("perfetto", lambda r: r["layers"][0].update(time_ns=None)),
        ("xprof", lambda r: r["settings"].update(shown=[["a", 1]])),
        ("accelforge", lambda r: r["layers"][0].update(facts={"nest": 3})),
    ],
)  # fmt: skip
def test_a_report_of_other_values_is_an_error_or_a_problem(name: str, change: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    put(tmp_path, name, with_report(name, change))
    assert refuses(tmp_path)


@pytest.mark.parametrize("name", ["zigzag", "dramsim3", "onnx"])
def test_an_answer_that_is_nested_too_deep_is_one_error(name: str, tmp_path: Path) -> None:
    files = answered(name)[0]
    for file in files:
        put(tmp_path, name, {**files, **({file: b"[" * 100_000} if file != REPORT_NAME else {})})
    with pytest.raises(ExportError):
        exporting.read_results(tmp_path, tmp_path / "answer", 1e9)


def test_an_answer_with_too_many_digits_is_named_by_its_line(tmp_path: Path) -> None:
    files = answered("scale_sim")[0]
    put(tmp_path, "scale_sim", {name: data.replace(b", 100,", f", {LONG},".encode()) for name, data in files.items()})
    with pytest.raises(ExportError, match=r"line 2: '9+.* is no number of cycles"):
        exporting.read_results(tmp_path, tmp_path / "answer", 1e9)


def test_sums_of_loops_are_counted_without_listing_them() -> None:
    """As they were listed: 4,000 random ones; and 2^64 x 3 of them, of which all but the ends are met twice or more."""
    random = Random(1)
    for _ in range(4_000):
        n, s, m, d = (random.randint(1, 9) for _ in range(4))
        listed = {i * s + j * d for i in range(n) for j in range(m)}
        assert distinct((("a", s), ("b", d)), {"a": n, "b": m}) == len(listed)
    assert distinct((("a", 1), ("b", 1)), {"a": 2**64, "b": 3}) == 2**64 + 2
    with pytest.raises(ValueError, match="too many values"):
        distinct((("a", 1), ("b", 1), ("c", 1)), {"a": MOST_COUNTED, "b": 2, "c": 1})


# --- data and text ------------------------------------------------------------------------------------------------------------------------


def test_a_gzipped_file_is_not_unpacked_beyond_its_promise(tmp_path: Path) -> None:
    """256 MiB of zeros behind two images: 1,569 bytes of them are unpacked."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(struct.pack(">4I", mnist.IMAGE_MAGIC, 2, 28, 28))
        for _ in range(256):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="promises 2 x 28 x 28 = 1568 bytes of images, found 1569 or more"):
            mnist.read_images(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_promise_of_images_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4I", mnist.IMAGE_MAGIC, 2**32 - 1, 28, 28) + bytes(784))
    with pytest.raises(DataError, match="found 784"):
        mnist.read_images(path)


def test_an_image_is_not_unpacked_beyond_what_its_bytes_hold(tmp_path: Path) -> None:
    """81 million black pixels in a PNG of some kB, which would take 400 MB in colour."""
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("1", (9000, 9000)).save(stream, "PNG")
    assert len(stream.getvalue()) < 20_000
    (tmp_path / "train-0").write_bytes(framed(example(stream.getvalue(), 7, ())))
    with pytest.raises(DataError, match=r"record 0: expected a photograph in image/encoded, found 9000 x 9000 pixels in \d+ bytes"):
        next(imagenet.read_batches(tmp_path, 8, 8, 1000, "training", 1, 0))


def test_numbers_of_many_digits_and_other_scripts_are_none(tmp_path: Path) -> None:
    """`int` refuses 5,000 digits, and takes those of other scripts."""
    path = tmp_path / "qa1_x_train.txt"
    for number in (LONG, "\N{ARABIC-INDIC DIGIT ONE}"):
        path.write_text(f"{number} Mary moved.\n", encoding="utf-8")
        with pytest.raises(DataError, match="line 1: expected a line that begins with the number 1"):
            babi.read_questions(path)
    phonemes = tmp_path / "a.phn"
    phonemes.write_text(f"0 {LONG} sh\n")
    with pytest.raises(DataError, match="line 1: expected first sample"):
        timit.read_phonemes(phonemes)
    header = (
        "NIST_1A\n   1024\nchannel_count -i 1\nsample_rate -i 16000\nsample_n_bytes -i 2\nsample_byte_format -s2 01\n\u00e9 -i 1\n"
    )
    for count in ("9" * 500, "-1"):
        sphere = tmp_path / "a.wav"
        sphere.write_bytes((header + f"sample_count -i {count}\nend_head\n").encode("latin-1").ljust(1024) + bytes(20))
        with pytest.raises(DataError, match="the header promises"):
            timit.read_sphere(sphere)


def test_a_name_that_the_system_cannot_spell_is_one_error() -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(ScenarioError, match="cannot be read"):
            read_document(Path(name))


def test_a_pattern_has_a_greatest_length() -> None:
    """Of 200,000 opening brackets matching alone would take minutes."""
    with pytest.raises(ScenarioError, match="has more than 2000 characters"):
        parse_selection("[" * 200_000)
    assert tiny()


def test_names_in_tables_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "count"), [("a\x1b[2J", "1"), ("b\nc", "2")])
    print_pairs([("k\r", "v\x1b]0;x\x07")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "a\\x1b[2J", "b\\nc", "k\\r"]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("lazy", [False, True])
def test_offsets_without_a_value_are_refused(lazy: bool, tmp_path: Path) -> None:
    """A table of offsets alone would have -1 rows."""
    store.save(tiny(), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["structures/execution_offsets"]
        file["structures/execution_offsets"] = np.zeros(0, np.int64)
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "b.h5").write_bytes(data if lazy else sealed(data))
    with pytest.raises(TraceFileError, match="structures has offsets without a value"):
        store.load(tmp_path / "b.h5", lazy=lazy)


def test_a_gzipped_file_that_unpacks_to_far_more_than_it_should_is_refused_early(tmp_path: Path) -> None:
    """Its header promises the 400 MiB of labels that it has; read are 256 times its own 0.4 MB, which are 104 MB, and no second time."""
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">2I", mnist.LABEL_MAGIC, 400 << 20), mtime=0) + zeros(400 << 20, 31))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"unpacks to more than 104 MB, .*unpack it with gunzip"):
        mnist.read_labels(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 130e6


@pytest.mark.parametrize(
    "refused",
    [
        lambda text: parse_scenario([f"threads:{text}"], Context()),
        lambda text: parse_sweep(f"Conv2D=1..1000:{text}"),
        lambda text: steps.view_steps(tiny(), text, "exporter 'x'"),
    ],
)
@pytest.mark.parametrize("text", [LONG, "²", "٣", "1_0", "-1", "+1", ""])
def test_whole_numbers_in_arguments_are_digits_and_not_thousands_of_them(refused: Callable[[str], object], text: str) -> None:
    with pytest.raises(FathomError):
        refused(text)


def test_a_whole_number_lies_within_its_bounds() -> None:
    found = [whole_number(text, 2, 30) for text in ("2", "30", "031", "31", "1", " 2", "2 ", "2.0", "²", "")]
    assert found == [2, 30, None, None, None, None, None, None, None, None]
    assert [whole_number("0" * count + "7", 2, 30) for count in (1, 9, 5000)] == [7, 7, 7]
    assert whole_number("00", 0, 30) == 0


@pytest.mark.xfail(strict=True, reason="the HDF5 library itself crashes, or never ends, on these: it would need a process of its own")
@pytest.mark.parametrize("name", ["crashes_hdf5.h5", "hangs_hdf5.h5"])
def test_files_that_break_the_hdf5_library_are_one_error(name: str) -> None:
    """Found by `benchmarks.fuzz`: links of a group whose index was changed, under checksums and a seal that agree."""
    words = [sys.executable, "-m", "fathom_trace", "info", "--full", str(Path(__file__).parent / "fixtures" / name)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=10, cwd=Path(__file__).parents[1])
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1
