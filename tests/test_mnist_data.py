"""Does the reader of MNIST's idx files give their images, and say what is wrong with a file that is none?"""

from __future__ import annotations

import gzip
import struct
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fathom_trace.data import mnist
from fathom_trace.errors import DataError

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package `dataset-fashion-mnist` puts it."""


def image_bytes(images: np.ndarray) -> bytes:
    """An idx file of images, by the published layout."""
    return struct.pack(">IIII", 2051, *images.shape) + images.tobytes()


def label_bytes(labels: list[int]) -> bytes:
    return struct.pack(">II", 2049, len(labels)) + bytes(labels)


def make_images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28)).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(image_bytes(make_images(5)))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(image_bytes(make_images(3, seed=1))))
    return tmp_path


def rows_of(batch: np.ndarray, images: np.ndarray) -> list[int]:
    """Which image each row of a batch is."""
    flat = images.reshape(len(images), -1) / 255
    return [int(np.abs(flat - row).sum(axis=1).argmin()) for row in batch]


def test_inference_reads_the_gzipped_test_images_in_order_again_and_again(folder: Path) -> None:
    batches = list(islice(mnist.read_batches(folder, "inference", 2, seed=0), 3))
    images = make_images(3, seed=1)
    read = np.concatenate([b["image"] for b in batches])
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, (images.reshape(3, 784) / 255)[[0, 1, 2, 0, 1, 2]], rtol=1e-6)


def test_training_shuffles_every_pass_anew_and_by_the_seed(folder: Path) -> None:
    images = make_images(5)
    passes = [rows_of(b["image"], images) for b in islice(mnist.read_batches(folder, "training", 5, seed=3), 4)]
    assert all(sorted(rows) == [0, 1, 2, 3, 4] for rows in passes)
    assert len(set(map(tuple, passes))) > 1
    again = [rows_of(b["image"], images) for b in islice(mnist.read_batches(folder, "training", 5, seed=3), 4)]
    assert again == passes


def test_standardized_pixels_have_mean_0_and_deviation_1_over_the_file(tmp_path: Path) -> None:
    images = make_images(50)
    images[:, 0, 0] = 7  # a pixel that never changes
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(image_bytes(images))
    batch = next(mnist.read_batches(tmp_path, "inference", 50, seed=0, is_standardized=True))["image"].astype(np.float64)
    flat = images.reshape(50, 784).astype(np.float64)
    assert np.all(batch[:, 0] == 0)
    np.testing.assert_allclose(batch[:, 1:], ((flat - flat.mean(axis=0)) / flat.std(axis=0).clip(1e-9))[:, 1:], atol=1e-5)


def test_deviations_of_many_images_are_summed_exactly(tmp_path: Path) -> None:
    """More images than are summed at a time (4096): 5000 of which 3000 are white. Mean 153, variance 255^2 x 0.6 x 0.4."""
    images = np.zeros((5000, 28, 28), np.uint8)
    images[:3000] = 255
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(image_bytes(images))
    batch = next(mnist.read_batches(tmp_path, "inference", 5000, seed=0, is_standardized=True))["image"]
    white, black = (255 - 153) / (255 * 0.24**0.5), -153 / (255 * 0.24**0.5)
    assert batch[0, 0] == pytest.approx(white, rel=1e-6)
    assert batch[4999, 783] == pytest.approx(black, rel=1e-6)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (label_bytes([1, 2, 3]) + bytes(20), r"expected the magic number 2051 of idx images, found 2049 \(that of labels\)"),
        (struct.pack("<IIII", 2051, 1, 28, 28) + bytes(784), "expected the magic number 2051 of idx images, found 50855936"),
        (image_bytes(make_images(2))[:-1], "its header promises 2 x 28 x 28 = 1568 bytes of images, found 1567"),
        (image_bytes(make_images(2)) + b"x", "its header promises 2 x 28 x 28 = 1568 bytes of images, found 1569"),
        (image_bytes(make_images(2))[:10], "expected a header of 16 bytes, but the file has 10"),
        (struct.pack(">IIII", 2051, 1, 32, 32) + bytes(1024), "expected images of 28 x 28 pixels, found 32 x 32"),
        (struct.pack(">IIII", 2051, 0, 28, 28), "expected at least one image, found none"),
    ],
)
def test_a_file_that_is_no_idx_file_of_images_is_named(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte: {problem}"):
        mnist.read_batches(tmp_path, "training", 1, seed=0)


@pytest.mark.parametrize("damage", [b"not gzip at all", gzip.compress(image_bytes(make_images(2)))[:-20]])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(damage)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        mnist.read_batches(tmp_path, "training", 1, seed=0)


def test_gzip_with_damaged_contents_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(image_bytes(make_images(2))))
    data[100] ^= 0xFF
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz"):
        mnist.read_batches(tmp_path, "training", 1, seed=0)


def test_a_folder_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte\.gz"):
        mnist.read_batches(tmp_path, "inference", 1, seed=0)
    with pytest.raises(DataError, match="is not a folder"):
        mnist.read_batches(tmp_path / "absent", "inference", 1, seed=0)


def test_labels_beside_the_images_must_be_as_many(folder: Path) -> None:
    labels = folder / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(label_bytes([0, 1, 2, 3, 4])))
    assert mnist.read_labels(labels).tolist() == [0, 1, 2, 3, 4]
    next(mnist.read_batches(folder, "training", 1, seed=0))
    labels.write_bytes(gzip.compress(label_bytes([0, 1])))
    with pytest.raises(DataError, match="expected a label for each of the 5 images beside it, found 2"):
        mnist.read_batches(folder, "training", 1, seed=0)
    labels.write_bytes(gzip.compress(image_bytes(make_images(5))))
    with pytest.raises(DataError, match=r"magic number 2049 of idx labels, found 2051 \(that of images\)"):
        mnist.read_batches(folder, "training", 1, seed=0)


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_read() -> None:
    """The data set's own description: 60,000 and 10,000 grey images of 28 x 28, ten classes of the same size."""
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        images = mnist.read_images(mnist.find(FASHION, f"{prefix}-images-idx3-ubyte"))
        labels = mnist.read_labels(mnist.find(FASHION, f"{prefix}-labels-idx1-ubyte"))
        assert images.shape == (count, 784)
        assert np.bincount(labels).tolist() == [count // 10] * 10
    batch = next(mnist.read_batches(FASHION, "training", 128, seed=0))["image"]
    assert batch.shape == (128, 784)
    assert (batch.min(), batch.max()) == (0, 1)
