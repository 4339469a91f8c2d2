"""Every reader of files and of text, with small valid inputs and the mutator that suits its format: what `fuzzing.fuzz` is given.

Exporters' `check` and `read_results` are found by the registry: a new exporter is here by existing (`read_results` needs an answer of its
target, made in `ANSWERS`).
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import small
from fuzzing import Files, Target
from fuzzing_hdf5 import in_old_layout, mutate_hdf5, sealed, unsealed
from fuzzing_mutations import (
    INTEGERS,
    mutate_bytes,
    mutate_delimited,
    mutate_gzip,
    mutate_json,
    mutate_text,
    mutate_wire,
    mutate_xml,
    mutate_yaml,
    varint,
)
from program import Program
from random_traces import LEAF_TABLES, make_trace

from fathom_trace import exporting, store
from fathom_trace.builder import TraceBuilder
from fathom_trace.data import babi, imagenet, mnist, parallel_text, timit
from fathom_trace.data.crc32c import masked_crc32c
from fathom_trace.exporter import REPORT_NAME, read_layer_map, write_report
from fathom_trace.exporters import REGISTRY
from fathom_trace.options import describe_options, parse_pairs
from fathom_trace.report.files import MARKER, refuse_to_lose
from fathom_trace.selecting import Choice, parse_span, parse_steps, part_of
from fathom_trace.sweeps.collection import MANIFEST, read_manifest
from fathom_trace.sweeps.sweep import earlier_attempts
from fathom_trace.sweeps.sweep_file import read_sweep
from fathom_trace.trace import Trace
from fathom_trace.units import parse_duration_ns, parse_quantity
from fathom_trace.whatif.accelerator import read_accelerator
from fathom_trace.whatif.scenario import Context, parse_scenario
from fathom_trace.whatif.scenario_file import read_scenarios
from fathom_trace.whatif.sweep import parse_sweep

Mutator = Callable[[Random, bytes, Sequence[bytes]], bytes]


def one_file(name: str, mutator: Mutator) -> Callable[[Random, Files, Sequence[Files]], Files]:
    """Changes to one file of the input."""

    def mutate(random: Random, files: Files, others: Sequence[Files]) -> Files:
        other = random.choice(others).get(name, b"")
        return {name: mutator(random, files[name], [other])}

    return mutate


def temporary_files(write: Callable[[Path], object]) -> Files:
    """The files that `write` puts in a folder."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        return {str(p.relative_to(name)): p.read_bytes() for p in sorted(Path(name).rglob("*")) if p.is_file()}


# --- traces -------------------------------------------------------------------------------------------------------------------------------


def nodes_only() -> Trace:
    """A trace with two nodes that nothing ran: the smallest file."""
    builder = TraceBuilder()
    first = builder.node("a", "Const", attributes={"T": "float32"})
    builder.node("b", "Neg", inputs=[(first, 0)])
    return builder.build({"workload": "x"})


def everywhere() -> Trace:
    """A trace with rows in every table, and values at the ends of their ranges."""
    counts = dict.fromkeys(("nodes", "shapes", *LEAF_TABLES), 3)
    return make_trace(np.random.default_rng(3), counts, [3, 2], [0, 1, -1, 0], {"workload": "x", "list": [1]})


def trace_bytes(trace: Trace, suffix: str) -> bytes:
    """A trace's file."""
    return temporary_files(lambda folder: store.save(trace, folder / f"a{suffix}"))[f"a{suffix}"]


def in_contiguous_layout(data: bytes) -> bytes:
    """An HDF5 trace as another program may write it: every column contiguous and of eight bytes, where single values can be changed."""
    out = io.BytesIO()
    with h5py.File(io.BytesIO(unsealed(data)), "r") as source, h5py.File(out, "w", libver="v110") as file:
        for key, value in source.attrs.items():
            file.attrs[key] = value
        for name in source:
            if isinstance(source[name], h5py.Group):
                file.create_group(name).attrs.update(source[name].attrs)
            for key in source[name] if isinstance(source[name], h5py.Group) else ("",):
                values = source[f"{name}/{key}"][()]
                wide = (
                    values
                    if name == "provenance" or key == "text"
                    else values.astype(np.uint64 if values.dtype == np.uint64 else np.int64)
                )
                file.create_dataset(f"{name}/{key}" if key else name, data=wide)
    return out.getvalue()


@functools.lru_cache(maxsize=512)
def _columns(data: bytes) -> tuple[tuple[str, int, int, str], ...]:
    """(name, offset, values, dtype) of the contiguous columns of a file; none if it is damaged."""
    found = []
    try:
        with h5py.File(io.BytesIO(unsealed(data)), "r") as file:
            for name in file:
                for key in file[name] if isinstance(file[name], h5py.Group) else ("",):
                    dataset = file[f"{name}/{key}"]
                    if dataset.id.get_offset() is not None and dataset.ndim == 1 and dataset.dtype.kind in "iu":
                        found.append((f"{name}/{key}", int(dataset.id.get_offset()), len(dataset), dataset.dtype.str))
    except (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError):
        return ()
    return tuple(found)


def mutate_trace_hdf5(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mostly single values of columns, where they lie in the file; else as `mutate_hdf5`."""
    columns = _columns(data) if random.random() < 0.6 else ()
    if not columns:
        return mutate_hdf5(random, data, others, through_hdf5=data in _hdf5_seeds())
    image = bytearray(unsealed(data))
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        name, offset, count, dtype = random.choice(columns)
        if not count:
            continue
        width = int(dtype[-1])
        if width == 1:
            text = bytes(image[offset : offset + count])
            changed = (mutate_json if name.startswith("provenance") else mutate_text)(random, text, ())
            image[offset : offset + count] = changed[:count].ljust(count)
            continue
        at = offset + width * random.randrange(count)
        old = int.from_bytes(image[at : at + width], "little")
        other = offset + width * random.randrange(count)
        value = random.choice((*INTEGERS, old + 1, old - 1, int.from_bytes(image[other : other + width], "little")))
        image[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    return sealed(bytes(image))


@functools.cache
def _hdf5_seeds() -> tuple[bytes, ...]:
    plain = [trace_bytes(trace(), ".h5") for trace in (nodes_only, small.diamond, everywhere)]
    compact = (Path(__file__).parent / "fixtures" / "format2.h5").read_bytes()
    return (
        plain[0], in_contiguous_layout(plain[0]), in_old_layout(plain[0]), plain[1], sealed(in_contiguous_layout(plain[1])),
        in_old_layout(plain[1]), sealed(in_contiguous_layout(plain[2])),
        compact, sealed(in_contiguous_layout(compact)), in_old_layout(compact),
    )  # fmt: skip


def touch(trace: Trace) -> Trace:
    """Ask for every column."""
    for table in trace.tables().values():
        for key in table.columns():
            getattr(table, key)
    return trace


def mutate_records(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A protobuf trace with changed records; nine of ten with an end that agrees with them."""
    from fathom_trace.generated import trace_pb2

    records = _records(data)
    if random.random() < 0.12 or not records:
        return mutate_bytes(random, data, others)
    payloads = mutate_delimited(random, records[:-1] or records)
    body = b"".join(varint(len(p)) + p for p in payloads)
    if random.random() < 0.03:
        body += random.choice((b"\x80", b"\xff" * 9, varint(2**31), varint(2**62), varint(2**70)))
    end = trace_pb2.Record(end=trace_pb2.End(size_bytes=len(body), crc32=zlib.crc32(body))).SerializeToString()
    if random.random() < 0.05:
        end = mutate_wire(random, end)
    return body + varint(len(end)) + end


def _records(data: bytes) -> list[bytes]:
    """The records of a file, as far as they can be told apart."""
    found, at = [], 0
    while at < len(data):
        size = shift = 0
        while at < len(data) and shift < 35:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(data[at : at + size])
        at += size
    return found


# --- exports ------------------------------------------------------------------------------------------------------------------------------


def tiny() -> Trace:
    """A convolution, a product that runs twice, and an op that is neither, in one step."""
    program = Program()
    program.convolution("c", [1, 5, 4, 2], [3, 2, 2, 3], [1, 3, 3, 3])
    a, b = program.input("a", [7, 4]), program.input("b", [4, 5])
    for _ in range(2):
        last = program.op("m", "MatMul", [a, b], [7, 5], {})
    program.op("r", "Relu", [last], [7, 5], {})
    return program.trace()


_VARIANTS: Mapping[str, Sequence[Mapping[str, str]]] = {
    "dramsim3": ({"timing": "order"},), "graph": ({"format": "graphml"},), "perfetto": ({"format": "json"},),
    "ramulator": ({"frontend": "simple_o3"},), "table": ({"format": "parquet"},), "timeloop": (), "scale_sim": ({"batch": "repeat"},),
}  # fmt: skip


@functools.cache
def exported(name: str) -> tuple[tuple[tuple[str, bytes], ...], ...]:
    """What an exporter writes of `tiny`, in each of its formats, with `export.json`."""
    from fathom_trace.options import apply_settings

    exporter = REGISTRY.load(name)
    found = []
    for settings in ({}, *_VARIANTS.get(name, ())):

        def write(folder: Path, settings: Mapping[str, str] = settings) -> None:
            write_report(folder, exporter.write(tiny(), folder, apply_settings(exporter.Options(), settings, name)))

        found.append(tuple(temporary_files(write).items()))
    return tuple(found)


def mutator_of(name: str) -> Mutator:
    """What changes a file, by its suffix."""
    suffix = name.rpartition(".")[2].lower()
    if suffix == "graphml":
        return mutate_xml
    if suffix == "json":
        return mutate_json
    if suffix in ("yaml", "yml"):
        return mutate_yaml
    if suffix in ("et", "pftrace", "pb", "onnx"):
        return mutate_delimited_file if suffix == "et" else mutate_wire
    return mutate_bytes if suffix in ("parquet", "bin", "data", "weights") else mutate_text


def mutate_delimited_file(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Changes to a file of messages, each after its length."""
    records = _records(data)
    if random.random() < 0.1 or not records:
        return mutate_bytes(random, data, others)
    return b"".join(varint(len(r)) + r for r in mutate_delimited(random, records))


def mutate_export(random: Random, files: Files, others: Sequence[Files]) -> Files:
    """Changes to `export.json`, to another file of an export, or to both."""
    names = [name for name in files if name != REPORT_NAME]
    chosen = {random.choice(names)} if random.random() < 0.6 else {REPORT_NAME}
    if random.random() < 0.1:
        chosen |= {REPORT_NAME, random.choice(names)}
    other = random.choice(others)
    return {name: mutator_of(name)(random, files[name], [other.get(name, b"")]) for name in sorted(chosen)}


# --- results ------------------------------------------------------------------------------------------------------------------------------

_SCALE_SIM = (
    "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %,\n"
)


def _scale_sim_answer(folder: Path, _exporter: Any) -> Files:
    return {
        f"answer/test_{kind}/COMPUTE_REPORT.csv": f"{_SCALE_SIM}0, 200, 100, 0, 33.1, 70.3, 30.4,\n".encode()
        for kind in ("conv", "gemm")
    }


def _zigzag_answer(folder: Path, exporter: Any) -> Files:
    return {
        f"answer/{layer.name}_complete.json": json.dumps(
            {
                "outputs": {"latency": {"data_onloading": 3, "computation": 40.5, "data_offloading": 2}},
                "inputs": {"layer": exporter._as_reported(layer)},
            }
        ).encode()
        for layer in read_layer_map(folder)
    }


def _accelforge_answer(folder: Path, _exporter: Any) -> Files:
    lines = "".join(f"{layer.name},{24 + i}\n" for i, layer in enumerate(read_layer_map(folder)))
    return {"answer/latency.csv": f"einsum,latency_cycles\n{lines}".encode()}


def _dramsim3_answer(folder: Path, _exporter: Any) -> Files:
    reads, writes = (sum(int(la.facts[side]) for la in read_layer_map(folder)) for side in ("reads", "writes"))
    epochs = [
        {
            "channel": 0,
            "epoch_num": n,
            "num_cycles": 100,
            "num_reads_done": reads // 2 * (n < 3),
            "num_writes_done": writes // 2 * (n < 3),
        }
        for n in (1, 2, 3)
    ]
    left = reads - reads // 2 * 2, writes - writes // 2 * 2
    total = {"channel": 0, "epoch_num": 3, "num_cycles": 350, "num_reads_done": left[0] + reads // 2 * 2, "num_writes_done": writes}
    return {"answer/dramsim3.json": json.dumps({"0": total}).encode(), "answer/dramsim3epoch.json": json.dumps(epochs).encode()}


def _onnx_answer(folder: Path, _exporter: Any) -> Files:
    names = [layer.name for layer in read_layer_map(folder)]
    group = "answer/test/group_0"
    return {
        f"{group}/allocation/reports/slot_latency_breakdown.yaml": b"totals:\n  overlap_cycles: 0\n  total_latency_cycles: 400\n",
        f"{group}/mapping.yaml": ("layers:\n" + "".join(f"- name: {name}\n" for name in names) + "fused_groups: []\n").encode(),
    }


def _chakra_answer(folder: Path, _exporter: Any) -> Files:
    def line(what: str, tick: int, node: int) -> str:
        return (
            f"[2026-03-26T02:50:47+0000] [D] <workload>: {what},sys->id=0, tick={tick}, node->id={node}, node->name=COMP_NODE_Op,"
            " node->type=4\n"
        )

    executions = [e for layer in read_layer_map(folder) for e in layer.executions]
    lines = "".join(line("issue", 10 * e, e) + line("callback", 10 * e + 7, e) for e in executions)
    end = "[2026-03-26T02:50:47+0000] [D] <workload>: sys[0] finished, 70 cycles, exposed communication 0 cycles.\n"
    return {"answer/log.log": (lines + end).encode()}


ANSWERS: Mapping[str, Callable[[Path, Any], Files]] = {
    "scale_sim": _scale_sim_answer, "zigzag": _zigzag_answer, "accelforge": _accelforge_answer, "dramsim3": _dramsim3_answer,
    "onnx": _onnx_answer, "chakra": _chakra_answer,
}  # fmt: skip


def answered(name: str) -> list[Files]:
    """Exports with an answer of their target beside them."""
    exporter = REGISTRY.load(name)
    found = []
    for files in map(dict, exported(name)):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / REPORT_NAME).write_bytes(files[REPORT_NAME])
            answer = ANSWERS[name](Path(folder), exporter)
        found.append({REPORT_NAME: files[REPORT_NAME], **answer})
    return found


def mutate_answer(random: Random, files: Files, others: Sequence[Files]) -> Files:
    """Changes to an answer; one time in ten to the layer map that it is compared with."""
    names = [name for name in files if name != REPORT_NAME]
    name = REPORT_NAME if random.random() < 0.1 else random.choice(names)
    return {name: mutator_of(name)(random, files[name], [random.choice(others).get(name, b"")])}


def read_answer(folder: Path) -> object:
    """Durations by execution."""
    return exporting.read_results(folder, folder / "answer", 2e9)


# --- text of users ------------------------------------------------------------------------------------------------------------------------

SCENARIOS = b"""# two scenarios
convolutions:
  - Conv2D=10
  - "layer:fc*=4"
  - Conv2D: 50us
  - kind:pooling=remove
"with hardware":
  - hardware: accelerator.yaml
  - fuse: BiasAdd+Relu
  - {threads: 2}
  - phase:backward=inf
nothing: []
"""
ACCELERATOR = b"""name: a systolic array with a vector unit
covers: [conv, conv_filter_grad, conv_input_grad, gemm, "layer:fc*"]
systolic: {rows: 128, columns: 128, dataflow: ws, clock: 700MHz}
peak: {float32: 2 TFLOP/s, bfloat16: 4 TFLOP/s}
bandwidth: 100 GB/s
overhead: 5us
link: {bandwidth: 16 GB/s, latency: 10us}
"""
ACCELERATOR_SHORT = b"covers: conv\npeak: 1e12\nbandwidth: 1e11 B/s\nlink: none\n"
SWEEP = b"""defaults:
  presets: tiny
  steps: 10
captures:
  - workloads: [vgg, memnet]
    threads: [1, 2]
  - workloads: residual
    modes: [training]
    batch_sizes: [1, 8]
    stages: [source, optimized]
    seeds: [0, 1]
    set: {classes: 100}
"""
_ENTRY = {"workload": "vgg", "mode": "training", "command": "capture vgg", "wall_ns": 5, "peak_bytes": 7, "error": ""}
_ATTEMPT = {"host": "a", "problem": "", "began": "2026-01-01T00:00:00Z"}
CAPTURES = json.dumps(
    [_ENTRY | {"file": f"traces/{end}.h5", "attempts": [_ATTEMPT | {"outcome": end}]} for end in ("captured", "lost")], indent=1
).encode()
REPORT = json.dumps({"files": ["report.json", "report.html", "data/ops.csv"], "traces": [{"name": "x", "time_ns": 5.5}]}).encode()
ARGUMENTS = (
    b"Conv2D=10\nlayer:fc*=4\nkind:pooling=remove", b"Conv2D=50us", b"fuse:BiasAdd+Relu\nphase:forward=inf", b"threads:2\nMatMul=1e3x",
    b"hardware:accelerator.yaml", b"predicate:mine.py=4", b"Conv2D=1..1000:20", b"layer:fc[0-9]=0.5..2", b"700MHz", b"1.5 s", b"batch=4",
    b"0..3,7", b"layer:conv*", b"10ms-1.5s", b"name=x\nstep=2",
)  # fmt: skip


def read_captures(folder: Path) -> object:
    """What a sweep reads of an earlier one, and its manifest written anew."""
    attempts = earlier_attempts(folder)
    return attempts, json.dumps(list(read_manifest(folder).values()))


def read_marker(folder: Path) -> object:
    """What stands in the way of a new report."""
    return refuse_to_lose(folder)


def read_arguments(folder: Path) -> object:
    """Texts as the command line takes them, by each parser in turn: the last error is raised if all refuse."""
    from fathom_trace.errors import FathomError

    texts = (folder / "arguments").read_bytes().decode("utf-8", "surrogateescape").split("\n")
    parsers: tuple[Callable[[], object], ...] = (
        lambda: list(map(str, parse_scenario(texts, Context(folder)).changes)),
        lambda: [str(parse_sweep(text)) for text in texts],
        lambda: parse_quantity(texts[0], "Hz"),
        lambda: parse_duration_ns(texts[0]),
        lambda: parse_pairs(texts),
        lambda: _choose(texts[0]),
        lambda: _settle(texts),
    )
    last: FathomError | None = None
    taken = 0
    for parse in parsers:
        try:
            parse()
            taken += 1
        except FathomError as error:
            if len(str(error).splitlines()) != 1 or not str(error).isprintable():
                raise
            last = error if last is None or hash(str(error)) % 2 else last
    if last is not None and not taken:
        raise last
    return taken


def _choose(text: str) -> object:
    """What `--phase`, `--layer`, `--device`, `--steps` and `--time` make of a text, asked of a trace."""
    made: tuple[Callable[[], Choice], ...] = (
        lambda: Choice(steps=parse_steps(text)), lambda: Choice(time_ns=parse_span(text)), lambda: Choice(layer=text),
        lambda: Choice(device=text), lambda: Choice(phase=text),
    )  # fmt: skip
    return str(part_of(_chosen_from(), made[len(text) % len(made)]()))


@functools.cache
def _chosen_from() -> Trace:
    return tiny()


def _settle(texts: Sequence[str]) -> object:
    from fathom_trace.options import apply_settings

    settings = parse_pairs(texts)
    for name in ("scale_sim", "ramulator", "perfetto"):
        options = REGISTRY.load(name).Options()
        describe_options(apply_settings(options, settings, name))
    return settings


# --- data sets ----------------------------------------------------------------------------------------------------------------------------


def _idx(magic: int, *shape: int) -> bytes:
    count = int(np.prod(shape))
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + bytes(k * 37 % 256 for k in range(count))


def _mnist_seeds() -> list[Files]:
    images, labels = _idx(mnist.IMAGE_MAGIC, 2, 28, 28), _idx(mnist.LABEL_MAGIC, 2)
    names = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
    return [
        dict(zip(names, (images, labels), strict=True)),
        {f"{n}.gz": gzip.compress(d, 1, mtime=0) for n, d in zip(names, (images, labels), strict=True)},
    ]


def mutate_idx(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Mostly the numbers of the header."""
    if random.random() < 0.4 or len(data) < 8:
        return mutate_bytes(random, data, others)
    at = 4 * random.randrange(min(4, len(data) // 4))
    return data[:at] + struct.pack(">I", random.choice(INTEGERS) % (1 << 32)) + data[at + 4 :]


def mutate_mnist(random: Random, files: Files, others: Sequence[Files]) -> Files:
    """Changes to the images or the labels."""
    name = random.choice(sorted(files))
    changed = mutate_gzip(random, files[name], mutate_idx) if name.endswith(".gz") else mutate_idx(random, files[name])
    return {name: changed}


def read_mnist(folder: Path) -> object:
    """A batch of each kind."""
    return [next(mnist.read_batches(folder, "training", 3, 0, standard))["image"].sum() for standard in (False, True)]


BABI = """1 Mary moved to the bathroom.
2 John went back to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went to the garden.
5 Where is Daniel? \tgarden\t4
1 Sandra travelled to the office.
2 Where is Sandra? \toffice\t1
"""


def read_babi(folder: Path) -> object:
    """A batch of each mode."""
    shape = babi.Shape(words=40, memory=3, width=8)
    return [next(babi.read_batches(folder, 1, shape, mode, 2, 0)) for mode in ("training", "inference")]


def read_sentences(folder: Path) -> object:
    """A batch of each mode."""
    shape = parallel_text.Shape(vocabulary=20, bucket=0)
    return [next(parallel_text.read_batches(folder, ("en", "fr"), 0, shape, mode, 2, 0)) for mode in ("training", "inference")]


def _timit_seed() -> Files:
    fields = {
        "channel_count": "-i 1", "sample_rate": "-i 16000", "sample_n_bytes": "-i 2", "sample_byte_format": "-s2 01",
        "sample_count": "-i 400",
        "sample_coding": "-s3 pcm",
    }  # fmt: skip
    header = "NIST_1A\n   1024\n" + "".join(f"{k} {v}\n" for k, v in fields.items()) + "end_head\n"
    samples = np.random.default_rng(0).integers(-3000, 3000, 400).astype("<i2").tobytes()
    return {"TRAIN/DR1/F/SA1.WAV": header.encode().ljust(1024) + samples, "TRAIN/DR1/F/SA1.PHN": b"0 100 h#\n100 300 sh\n300 400 h#\n"}


def mutate_timit(random: Random, files: Files, others: Sequence[Files]) -> Files:
    """Changes to the header, the samples or the phonemes."""
    name = random.choice(sorted(files))
    if name.endswith(".PHN"):
        return {name: mutate_text(random, files[name])}
    data = files[name]
    if random.random() < 0.7:
        return {name: mutate_text(random, data[:200].rstrip()).ljust(1024) + data[1024:]}
    return {name: mutate_bytes(random, data)}


def read_timit(folder: Path) -> object:
    """A batch."""
    return next(timit.read_batches(folder, 12, 8, 1, "training", 1, 0))["features"].sum()


def example(encoded: bytes, label: int, boxes: Sequence[float]) -> bytes:
    """A record of ImageNet."""
    from fathom_trace.generated.tensorflow_example_pb2 import Example

    example = Example()
    example.features.feature["image/encoded"].bytes_list.value.append(encoded)
    example.features.feature["image/class/label"].int64_list.value.append(label)
    for side, value in zip(("ymin", "xmin", "ymax", "xmax"), boxes, strict=False):
        example.features.feature[f"image/object/bbox/{side}"].float_list.value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


def framed(payload: bytes) -> bytes:
    """A record as a TFRecord file holds it."""
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", masked_crc32c(length)) + payload + struct.pack("<I", masked_crc32c(payload))


def _picture(kind: str) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.arange(16 * 12 * 3, dtype=np.uint8).reshape(12, 16, 3)).save(stream, kind)
    return stream.getvalue()


def _imagenet_seeds() -> list[Files]:
    pictures = [_picture(kind) for kind in ("JPEG", "PNG")]
    records = [example(pictures[0], 7, (0.1, 0.2, 0.8, 0.9)), example(pictures[1], 1000, ())]
    return [
        {"train-00000": b"".join(map(framed, records))},
        {"train-00000": framed(records[0])},
        {"train-00000": framed(records[1])},
    ]


def mutate_tfrecord(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Changes to pictures, to the records around them, and to their frames; mostly with checksums that agree."""
    if random.random() < 0.15:
        return mutate_bytes(random, data, others)
    payloads, at = [], 0
    while at + 16 <= len(data) and len(payloads) < 4:
        (size,) = struct.unpack_from("<Q", data, at)
        payloads.append(data[at + 12 : at + 12 + min(size, len(data))])
        at += 16 + min(size, len(data))
    if not payloads:
        return mutate_bytes(random, data, others)
    which = random.randrange(len(payloads))
    if random.random() < 0.6:
        payloads[which] = _with_other_picture(random, payloads[which])
    else:
        payloads[which] = mutate_wire(random, payloads[which])
    made = b"".join(map(framed, payloads))
    if random.random() < 0.05:
        length = struct.pack("<Q", random.choice(INTEGERS) % (1 << 64))
        made += length + struct.pack("<I", masked_crc32c(length)) + bytes(20)
    return made


def _with_other_picture(random: Random, payload: bytes) -> bytes:
    from google.protobuf.message import DecodeError

    from fathom_trace.generated.tensorflow_example_pb2 import Example

    try:
        example = Example.FromString(payload)
    except DecodeError:
        return mutate_bytes(random, payload)
    values = example.features.feature["image/encoded"].bytes_list.value
    if not values:
        return mutate_wire(random, payload)
    picture = bytearray(values[0])
    if random.random() < 0.4:  # the declared size
        at = picture.find(b"\xff\xc0") + 5 if picture[:2] == b"\xff\xd8" else 16
        wide = picture[:2] != b"\xff\xd8"
        size = struct.pack(">2I" if wide else ">2H", *(random.choice((0, 1, 16, 500, 3000, 9000, 20_000, 65_500)) for _ in range(2)))
        picture[at : at + len(size)] = size
        if wide and len(picture) > 33:
            picture[29:33] = struct.pack(">I", zlib.crc32(bytes(picture[12:29])))
    else:
        picture = bytearray(mutate_bytes(random, bytes(picture)))
    values[0] = bytes(picture)
    return bytes(example.SerializeToString(deterministic=True))


def read_imagenet(folder: Path) -> object:
    """A batch of two."""
    return next(imagenet.read_batches(folder, 8, 8, 1000, "training", 2, 0))["image"].sum()


# --- all of them --------------------------------------------------------------------------------------------------------------------------


def _targets() -> Iterator[Target]:
    hdf5 = one_file("a.h5", mutate_trace_hdf5)
    yield Target("hdf5", lambda: [{"a.h5": data} for data in _hdf5_seeds()], hdf5, lambda folder: store.load(folder / "a.h5"))
    yield Target(
        "hdf5-lazy",
        lambda: [{"a.h5": data} for data in _hdf5_seeds()],
        hdf5,
        lambda folder: touch(store.load(folder / "a.h5", lazy=True)),
    )
    proto_seeds = [nodes_only, small.diamond, small.loop, everywhere]
    yield Target(
        "protobuf", lambda: [{"a.pb": trace_bytes(trace(), ".pb")} for trace in proto_seeds], one_file("a.pb", mutate_records),
        lambda folder: store.load(folder / "a.pb"),
    )  # fmt: skip
    context = {"accelerator.yaml": ACCELERATOR}
    yield Target(
        "scenario-yaml", lambda: [{"s.yaml": SCENARIOS, **context}], one_file("s.yaml", mutate_yaml),
        lambda folder: list(map(str, read_scenarios(folder / "s.yaml").values())),
    )  # fmt: skip
    yield Target(
        "accelerator-yaml", lambda: [{"a.yaml": text} for text in (ACCELERATOR, ACCELERATOR_SHORT)], one_file("a.yaml", mutate_yaml),
        lambda folder: read_accelerator(folder / "a.yaml"),
    )  # fmt: skip
    yield Target(
        "sweep-yaml", lambda: [{"s.yaml": SWEEP}], one_file("s.yaml", mutate_yaml), lambda folder: read_sweep(folder / "s.yaml")
    )
    yield Target("manifest", lambda: [{MANIFEST: CAPTURES}], one_file(MANIFEST, mutate_json), read_captures)
    yield Target("report-marker", lambda: [{MARKER: REPORT}], one_file(MARKER, mutate_json), read_marker)
    yield Target(
        "arguments", lambda: [{"arguments": text, **context} for text in ARGUMENTS], one_file("arguments", mutate_text), read_arguments
    )
    yield Target(
        "layer-map", lambda: [{REPORT_NAME: dict(exported(name)[0])[REPORT_NAME]} for name in ("scale_sim", "dramsim3")],
        one_file(REPORT_NAME, mutate_json), read_layer_map,
    )  # fmt: skip
    for name in REGISTRY.names():
        yield Target(
            f"check-{name}",
            lambda name=name: [dict(files) for files in exported(name)],
            mutate_export,
            lambda folder: exporting.check(folder)[1],
        )
    for name in REGISTRY.names():
        if hasattr(REGISTRY.load(name), "read_results"):
            yield Target(f"results-{name}", lambda name=name: answered(name), mutate_answer, read_answer)
    yield Target("mnist", _mnist_seeds, mutate_mnist, read_mnist)
    texts = {"qa1_x_train.txt": BABI.encode(), "qa1_x_test.txt": b"1 Mary moved to the office.\n2 Where is Mary? \toffice\t1\n"}
    yield Target("babi", lambda: [texts], one_file("qa1_x_train.txt", mutate_text), read_babi)
    pairs = {"train.en": b"He paid 25.\nA cat!\n", "train.fr": b"Il a pay\xc3\xa9 25.\nUn chat !\n", "test.en": b"A cat paid.\n"}
    yield Target("parallel-text", lambda: [pairs], lambda r, f, o: one_file(r.choice(sorted(f)), mutate_text)(r, f, o), read_sentences)
    yield Target("timit", lambda: [_timit_seed()], mutate_timit, read_timit)
    yield Target("imagenet", _imagenet_seeds, one_file("train-00000", mutate_tfrecord), read_imagenet)


@functools.cache
def targets() -> dict[str, Target]:
    """Every reader by name."""
    return {target.name: target for target in _targets()}
