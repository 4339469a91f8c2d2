"""Images in MNIST's idx files, gzipped or not, into scaled minibatches. Fashion-MNIST has the same names and format.

An idx file is big-endian: a magic number (2051 for images, 2049 for labels), the number of items, for images the rows and columns,
then one unsigned byte a pixel or label. http://yann.lecun.com/exdb/mnist/, "FILE FORMATS FOR THE MNIST DATABASE".

Training takes the images of `train-*` in a seeded random order, anew in every pass; inference takes those of `t10k-*` as they lie.
Both begin again at the end, and a minibatch may hold the end of one pass and the beginning of the next. Labels serve nothing here;
where they lie beside the images, their number is compared, for a mismatch means that files of two data sets are mixed.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import DataError, one_line
from fathom_trace.units import format_bytes
from fathom_trace.workload import Values

FORMAT = (
    "MNIST idx files, gzipped (.gz) or not: train-images-idx3-ubyte (training) and t10k-images-idx3-ubyte (inference), 28 x 28 pixels;"
    " labels-idx1-ubyte may lie beside them; Fashion-MNIST has the same format"
)
ROWS = COLUMNS = 28
_PIECE_BYTES = 1 << 20
UNPACKED_FREE_BYTES, UNPACKED_RATIO = 64 << 20, 256
"""A gzipped file may unpack to so much, or to so many times its size where that is more: MNIST's own to 2 and 5 times."""
PIXELS = ROWS * COLUMNS
TRAINING_IMAGES = 60_000
IMAGE_MAGIC, LABEL_MAGIC = 2051, 2049

_PREFIX = {"training": "train", "inference": "t10k"}
_ITEM = {IMAGE_MAGIC: "images", LABEL_MAGIC: "labels"}
_DIMENSIONS = {IMAGE_MAGIC: 3, LABEL_MAGIC: 1}


def read_batches(folder: Path, mode: str, batch_size: int, seed: int, is_standardized: bool = False) -> Iterator[Values]:
    """Minibatches without end: `image` [batch, 784] float32, grey values in [0, 1].

    With `is_standardized` each pixel has mean 0 and deviation 1 over the images of the file; a pixel that never changes is 0.

    Raises:
        DataError: the folder lacks the file, or the file is not what its name promises.
    """
    images = read_images(find(folder, f"{_PREFIX[mode]}-images-idx3-ubyte"))
    labels = _beside(folder, f"{_PREFIX[mode]}-labels-idx1-ubyte")
    if labels is not None and len(read_labels(labels)) != len(images):
        raise DataError(f"{labels}: expected a label for each of the {len(images)} images beside it, found {len(read_labels(labels))}")
    scale = _Standard(images) if is_standardized else _Grey()
    return _batches(images, scale, mode, batch_size, seed)


def find(folder: Path, name: str) -> Path:
    """The file `name` or `name`.gz in `folder`.

    Raises:
        DataError: there is neither.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds {name} or {name}.gz")
    found = _beside(folder, name)
    if found is None:
        raise DataError(f"{folder} holds neither {name} nor {name}.gz")
    return found


def read_images(path: Path) -> NDArray[np.uint8]:
    """The images of an idx file, [images, 784].

    Raises:
        DataError: the file cannot be read, or is no idx file of 28 x 28 images; says which and what was expected.
    """
    items = _read(path, IMAGE_MAGIC)
    if items.shape[1:] != (ROWS, COLUMNS):
        raise DataError(f"{path}: expected images of {ROWS} x {COLUMNS} pixels, found {items.shape[1]} x {items.shape[2]}")
    if not len(items):
        raise DataError(f"{path}: expected at least one image, found none")
    return items.reshape(-1, PIXELS)


def read_labels(path: Path) -> NDArray[np.uint8]:
    """The labels of an idx file, [labels].

    Raises:
        DataError: the file cannot be read, or is no idx file of labels.
    """
    return _read(path, LABEL_MAGIC)


def _read(path: Path, magic: int) -> NDArray[np.uint8]:
    """The items of a file. Of a gzipped one no more is unpacked than its header promises, and one byte, which tells that there is more."""
    header = 4 + 4 * _DIMENSIONS[magic]
    try:
        with path.open("rb") as file:
            if path.suffix != ".gz":
                return _items(path, magic, header, file)
            most = max(UNPACKED_FREE_BYTES, UNPACKED_RATIO * path.stat().st_size)
            return _items(path, magic, header, gzip.GzipFile(fileobj=file), most)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"{path}: cannot be read: {reason}") from None


def _items(path: Path, magic: int, header: int, file: IO[bytes] | gzip.GzipFile, most: float = math.inf) -> NDArray[np.uint8]:
    data = file.read(header)
    if len(data) < header:
        raise DataError(f"{path}: expected a header of {header} bytes, but the file has {len(data)}")
    found, *shape = struct.unpack_from(f">{1 + _DIMENSIONS[magic]}I", data)
    if found != magic:
        hint = f" (that of {_ITEM[found]})" if found in _ITEM else ""
        raise DataError(f"{path}: expected the magic number {magic} of idx {_ITEM[magic]}, found {found}{hint}")
    expected = math.prod(shape)
    content = bytearray()
    for piece in _pieces(file, expected + 1):
        content += piece
        if len(content) > most:
            raise DataError(
                f"{path}: unpacks to more than {format_bytes(most)}, far more than such files do; if it is right, unpack it with gunzip"
            )
    if len(content) != expected:
        sizes = " x ".join(map(str, shape))
        more = " or more" if len(content) > expected else ""
        raise DataError(f"{path}: its header promises {sizes} = {expected} bytes of {_ITEM[magic]}, found {len(content)}{more}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _pieces(file: IO[bytes] | gzip.GzipFile, most: int) -> Iterator[bytes]:
    """At most so many bytes, piece by piece: a promise alone takes no memory."""
    while most > 0 and (piece := file.read(min(most, _PIECE_BYTES))):
        yield piece
        most -= len(piece)


def _beside(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


class _Grey:
    """Grey values in [0, 1]."""

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        return images.astype(np.float32) / np.float32(255)


class _Standard:
    """Each pixel with mean 0 and deviation 1 over a set of images."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        count = len(images)
        total = images.sum(axis=0, dtype=np.int64)
        squares = np.zeros(PIXELS, np.int64)
        for begin in range(0, count, 4096):  # in parts, for whole files as integers of 8 bytes take ten times their size
            squares += np.square(images[begin : begin + 4096], dtype=np.int64).sum(axis=0)
        mean = total / count
        variance = squares / count - np.square(mean)
        self._mean = mean.astype(np.float32)
        self._deviation = np.sqrt(np.where(squares * count == total**2, 1, variance)).astype(np.float32)

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        scaled: NDArray[np.float32] = (images.astype(np.float32) - self._mean) / self._deviation
        return scaled


def _batches(images: NDArray[np.uint8], scale: _Grey | _Standard, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    rows = _endless(len(images), mode, np.random.default_rng(seed))
    while True:
        yield {"image": scale(images[[next(rows) for _ in range(batch_size)]])}


def _endless(count: int, mode: str, generator: np.random.Generator) -> Iterator[int]:
    while True:
        yield from (generator.permutation(count) if mode == "training" else np.arange(count)).tolist()
