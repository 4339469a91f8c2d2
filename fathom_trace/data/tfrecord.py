"""TFRecord files: length-prefixed records with checksums, as TensorFlow's `tf.io.TFRecordWriter` makes them.

A record is: length (uint64), masked CRC-32C of the length's 8 bytes (uint32), the payload, masked CRC-32C of the payload (uint32);
all little-endian. https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from fathom_trace.data.crc32c import masked_crc32c
from fathom_trace.errors import DataError

_HEADER_BYTES = 12
_FOOTER_BYTES = 4


def read_records(path: Path) -> Iterator[bytes]:
    """The payload of each record, in order; both checksums of each are verified.

    Raises:
        DataError: the file cannot be read, is cut off, or a checksum is wrong; names the file, the record (from 0) and the byte.
    """
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            record = 0
            while header := file.read(_HEADER_BYTES):
                where = f"{path}: record {record} at byte {file.tell() - len(header)}"
                if len(header) < _HEADER_BYTES:
                    raise DataError(f"{where}: the file ends after {len(header)} bytes of the {_HEADER_BYTES}-byte record header")
                length, length_crc = struct.unpack("<QI", header)
                _verify(where, "length", header[:8], length_crc)
                left = size_bytes - file.tell()
                if length + _FOOTER_BYTES > left:
                    raise DataError(
                        f"{where}: expected {length} bytes and a {_FOOTER_BYTES}-byte checksum, but only {left} bytes are left"
                    )
                payload = file.read(length)
                _verify(where, "payload", payload, *struct.unpack("<I", file.read(_FOOTER_BYTES)))
                yield payload
                record += 1
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _verify(where: str, part: str, data: bytes, stored: int) -> None:
    computed = masked_crc32c(data)
    if computed != stored:
        hint = "; is this an uncompressed TFRecord file?" if part == "length" else ""
        raise DataError(f"{where}: expected checksum {computed:#010x} of the {part}, found {stored:#010x}{hint}")
