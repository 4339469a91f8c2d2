"""Mutates HDF5 traces: their bytes, with every checksum that can be found mended, and what they declare and hold, through HDF5 itself."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import h5py
import numpy as np
from fuzzing_mutations import INTEGERS, TEXTS, mutate_bytes, mutate_json, mutate_text, zeros

from fathom_trace.store.hdf5 import SEAL_MAGIC

_SEAL = struct.Struct("<16sQI")


def sealed(image: bytes) -> bytes:
    """An HDF5 file with the seal that belongs to it."""
    return image + _SEAL.pack(SEAL_MAGIC, len(image), zlib.crc32(image))


def unsealed(data: bytes) -> bytes:
    """A sealed file without its seal."""
    return data[: -_SEAL.size] if data[-_SEAL.size : -_SEAL.size + len(SEAL_MAGIC)] == SEAL_MAGIC else data


def in_old_layout(data: bytes) -> bytes:
    """The same content as the oldest HDF5 would write it: without checksums, so that changed bytes reach what reads them."""
    out = io.BytesIO()
    with h5py.File(io.BytesIO(unsealed(data)), "r") as source, h5py.File(out, "w", libver="earliest") as file:
        for key, value in source.attrs.items():
            file.attrs[key] = value
        for name in source:
            if isinstance(source[name], h5py.Group):
                group = file.create_group(name)
                group.attrs.update(source[name].attrs)
                for key, dataset in source[name].items():
                    group.create_dataset(key, data=dataset[()])
            else:
                file.create_dataset(name, data=source[name][()], **({"compression": "gzip"} if source[name].shape[0] > 8 else {}))
    return out.getvalue()


def mutate_hdf5(random: Random, data: bytes, others: Sequence[bytes] = (), through_hdf5: bool = True) -> bytes:
    """A changed file; four of five carry a seal that agrees. HDF5 is to change only whole files: it may crash on others."""
    image = unsealed(data)
    kind = random.random()
    if kind < 0.35 or not through_hdf5:
        made = mended(mutate_bytes(random, image, others))
    else:
        try:
            made = _through_hdf5(random, image)
        except _OWN_ERRORS:
            made = mended(mutate_bytes(random, image, others))
    return sealed(made) if random.random() < 0.8 else made


_OWN_ERRORS = (
    OSError,
    KeyError,
    ValueError,
    RuntimeError,
    TypeError,
    OverflowError,
    AttributeError,
    NotImplementedError,
    IndexError,
    MemoryError,
)
"""What h5py raises when it is asked for what it does not do: on files that are damaged already, and on some changes."""


# --- through HDF5 -------------------------------------------------------------------------------------------------------------------------


def _through_hdf5(random: Random, image: bytes) -> bytes:
    buffer = io.BytesIO(image)
    with h5py.File(buffer, "r+") as file:
        names = [f"{group}/{key}" for group in file for key in (file[group] if isinstance(file[group], h5py.Group) else ())]
        for _ in range(1 + min(int(random.expovariate(0.9)), 5)):
            name = random.choice([*names, "provenance"] if random.random() < 0.9 or not names else ["strings/text", "provenance"])
            if random.random() < 0.6:
                _change_values(random, file, name)
            else:
                random.choice(_CHANGES)(random, file, name)
    return buffer.getvalue()


def _change_values(random: Random, file: h5py.File, name: str) -> None:
    """Some numbers of a column, or its text."""
    dataset = file[name]
    values = dataset[()]
    if values.ndim != 1 or not len(values) or values.dtype.kind not in "iu":
        return
    if name == "provenance" or name == "strings/text":
        changed = (mutate_json if name == "provenance" else mutate_text)(random, values.astype(np.uint8).tobytes())
        new = np.frombuffer(changed, np.uint8)
        if name == "strings/text" and random.random() < 0.7:
            new = np.resize(new if len(new) else np.zeros(1, np.uint8), len(values))
    else:
        new = values.copy()
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            at = random.randrange(len(new))
            value = random.choice((*INTEGERS, int(new[at]) + 1, int(new[at]) - 1, int(new[random.randrange(len(new))])))
            if not np.iinfo(new.dtype).min <= value <= np.iinfo(new.dtype).max:
                new = new.astype(np.int64 if -(2**63) <= value < 2**63 and new.dtype != np.uint64 else np.uint64)
                value %= 1 << 64 if new.dtype == np.uint64 else 1 << 63
            new[at] = value
        if random.random() < 0.1:
            new[:] = new[random.randrange(len(new))]
    if new.dtype == values.dtype and len(new) == len(values):
        dataset[...] = new
    else:
        _put(file, name, new)


def _put(file: h5py.File, name: str, data: Any = None, **more: Any) -> None:
    del file[name]
    file.create_dataset(name, data=data, **more)


def _other_rows(random: Random, file: h5py.File, name: str) -> None:
    values = file[name][()]
    count = random.choice((0, 1, len(values) - 1, len(values) + 1, 2 * len(values), 300))
    _put(file, name, np.resize(values, max(0, count)))


def _other_type(random: Random, file: h5py.File, name: str) -> None:
    values = file[name][()]
    kind = random.choice(
        (">i8", "<i8", "<u8", ">u2", "i1", "f4", "f8", "S3", "V4", "?", [("a", "i4"), ("b", "f4")], "c8", "vlen", "str", "odd", "enum")
    )
    if kind == "vlen":
        _put(file, name, shape=values.shape, dtype=h5py.vlen_dtype("i4"))
    elif kind == "str":
        _put(file, name, ["x"] * len(values))
    elif kind == "odd":
        made = h5py.h5t.NATIVE_INT32.copy()
        made.set_precision(random.choice((1, 7, 31)))
        del file[name]
        h5py.h5d.create(file.id, name.encode(), made, h5py.h5s.create_simple(values.shape))
    elif kind == "enum":
        _put(file, name, values % 2, dtype=h5py.enum_dtype({"A": 0, "B": 1}, basetype="i4"))
    else:
        _put(file, name, values.astype(kind) if isinstance(kind, str) else np.zeros(len(values), kind))


def _other_storage(random: Random, file: h5py.File, name: str) -> None:
    values = file[name][()]
    more: list[dict[str, Any]] = [
        {"chunks": (max(1, len(values) // 2),)}, {"chunks": (1,)}, {"chunks": (len(values) + 1000,), "maxshape": (None,)},
        {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"fletcher32": True},
        {"scaleoffset": 0}, {"maxshape": (None,)}, {"compression": "gzip", "chunks": (1,), "shuffle": True, "fletcher32": True},
    ]  # fmt: skip
    _put(file, name, values, **random.choice(more))


def _other_rank(random: Random, file: h5py.File, name: str) -> None:
    values = file[name][()]
    _put(
        file,
        name,
        random.choice((values.reshape(1, -1), values.reshape(-1, 1), 3, h5py.Empty("i4"), np.zeros((0, 0), int), values[None, None])),
    )


def _declare_much(random: Random, file: h5py.File, name: str) -> None:
    rows = random.choice((1000, 2**20, 2**31, 2**40, 2**62))
    more = random.choice(({}, {"chunks": (1000,), "compression": "gzip"}, {"chunks": (2**24,)}, {"chunks": (min(rows, 2**29),)}))
    _put(file, name, shape=(rows,), dtype=random.choice(("u1", "i4", "i8")), **more)


def _chunks(random: Random, file: h5py.File, name: str) -> None:
    values = file[name][()]
    rows = random.choice((len(values), len(values), 1 << 20))
    del file[name]
    dataset = file.create_dataset(
        name, (len(values),), values.dtype, maxshape=(None,), chunks=(max(1, rows),), compression="gzip", shuffle=random.random() < 0.5
    )
    content = random.choice(
        (
            lambda: zlib.compress(values.tobytes()), lambda: zlib.compress(values.tobytes() + bytes(8)),
            lambda: zeros(64 << 20, 15),
            lambda: mutate_bytes(random, zlib.compress(values.tobytes())), lambda: values.tobytes(), lambda: b"", lambda: b"x" * 100,
        )
    )()  # fmt: skip
    dataset.id.write_direct_chunk((0,), content, random.choice((0, 0, 0, 1, 2, 3, 0xFFFFFFFF)))


def _link(random: Random, file: h5py.File, name: str) -> None:
    path = random.choice((name, name.partition("/")[0]))
    target = random.choice(
        (h5py.SoftLink("/" + path), h5py.SoftLink("/nowhere"), h5py.SoftLink("../.."), h5py.ExternalLink("/etc/passwd", "/"),
         h5py.ExternalLink("input.h5", "/" + path), h5py.ExternalLink("../x.h5", "/"), file["/"], file[name], np.dtype("i4"))
    )  # fmt: skip
    del file[path]
    file[path] = target


def _outside(random: Random, file: h5py.File, name: str) -> None:
    rows = len(file[name])
    del file[name]
    if random.random() < 0.5:
        file.create_dataset(name, (rows,), "i4", external=[(random.choice(("/etc/passwd", "x", "../../x")), 0, 4 * rows)])
        return
    layout = h5py.VirtualLayout((rows,), "i4")
    layout[:] = h5py.VirtualSource(random.choice((".", "/etc/passwd", "input.h5")), random.choice(("x", name)), (rows,))
    file.create_virtual_dataset(name, layout)


def _remove(random: Random, file: h5py.File, name: str) -> None:
    del file[random.choice((name, name, name.partition("/")[0]))]


def _swap(random: Random, file: h5py.File, name: str) -> None:
    group = name.partition("/")[0]
    other = f"{group}/{random.choice(list(file[group]))}" if "/" in name else name
    first, second = file[name][()], file[other][()]
    if other != name:
        _put(file, name, second)
        _put(file, other, first)


def _mark(random: Random, file: h5py.File, _name: str) -> None:
    key = random.choice(("format", "version"))
    value = random.choice(
        (np.int32(random.choice((-1, 0, 1, 2, 2**31 - 1))), np.uint64(2**64 - 1), np.bytes_("fathom-trace"), "fathom-trace",
        np.float64("nan"),
         np.array([1, 1]), np.zeros((2, 2), "i4"), h5py.Empty("i4"), np.bytes_("x" * 5000), np.bytes_(""))
    )  # fmt: skip
    file.attrs.pop(key, None)
    if random.random() < 0.8:
        file.attrs[key] = value


def _add(random: Random, file: h5py.File, name: str) -> None:
    """What readers are to ignore."""
    file[name].attrs["note"] = random.choice(("mine", np.zeros(300), h5py.Empty("f4")))
    file[f"{random.choice(('nodes', 'x', 'x/y'))}/{random.randrange(10**6)}"] = np.zeros(3)
    file.attrs[random.choice([text for text in TEXTS if text and "\0" not in text and text.isascii()])] = 1


_CHANGES: tuple[Callable[[Random, h5py.File, str], None], ...] = (
    _other_rows, _other_rows, _other_type, _other_storage, _other_rank, _declare_much, _chunks, _chunks, _link, _outside,
    _remove, _swap, _mark,
    _add,
)  # fmt: skip


# --- HDF5's own checksums -----------------------------------------------------------------------------------------------------------------


def mended(image: bytes) -> bytes:
    """An HDF5 file whose superblock and object headers carry checksums that agree with them, as far as their sizes can be told."""
    made = bytearray(image)
    if len(made) > 48 and made[8] in (2, 3):
        made[44:48] = struct.pack("<I", lookup3(bytes(made[:44])))
    at = made.find(b"OHDR")
    while at >= 0 and at + 20 < len(made):
        flags = made[at + 5]
        begin = at + 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
        width = 1 << (flags & 3)
        end = begin + width + int.from_bytes(made[begin : begin + width], "little")
        if end + 4 <= len(made) and end - at < 5000:
            checksum = struct.unpack_from("<I", made, end)[0]
            if checksum != (right := lookup3(bytes(made[at:end]))):
                struct.pack_into("<I", made, end, right)
        at = made.find(b"OHDR", at + 4)
    return bytes(made)


def lookup3(data: bytes) -> int:
    """Bob Jenkins's lookup3 hash of some bytes, with which HDF5 checks its metadata. http://burtleburtle.net/bob/c/lookup3.c,
    `hashlittle`"""
    mask = 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + len(data)) & mask
    if not data:
        return c
    whole = max(0, (len(data) - 1) // 12)
    words = struct.unpack_from(f"<{3 * whole}I", data)
    for k in range(whole):
        a, b, c = (a + words[3 * k]) & mask, (b + words[3 * k + 1]) & mask, (c + words[3 * k + 2]) & mask
        a = (a - c & mask) ^ _rotated(c, 4)
        c = c + b & mask
        b = (b - a & mask) ^ _rotated(a, 6)
        a = a + c & mask
        c = (c - b & mask) ^ _rotated(b, 8)
        b = b + a & mask
        a = (a - c & mask) ^ _rotated(c, 16)
        c = c + b & mask
        b = (b - a & mask) ^ _rotated(a, 19)
        a = a + c & mask
        c = (c - b & mask) ^ _rotated(b, 4)
        b = b + a & mask
    rest = struct.unpack("<3I", data[12 * whole :].ljust(12, b"\0"))
    a, b, c = (a + rest[0]) & mask, (b + rest[1]) & mask, (c + rest[2]) & mask
    c = (c ^ b) - _rotated(b, 14) & mask
    a = (a ^ c) - _rotated(c, 11) & mask
    b = (b ^ a) - _rotated(a, 25) & mask
    c = (c ^ b) - _rotated(b, 16) & mask
    a = (a ^ c) - _rotated(c, 4) & mask
    b = (b ^ a) - _rotated(a, 14) & mask
    return (c ^ b) - _rotated(b, 24) & mask


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF
