"""Does the reader of ImageNet's TFRecord shards give their images and classes, and say what is wrong with a file that is none?"""

from __future__ import annotations

import gzip
import io
import struct
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fathom_trace.data import imagenet
from fathom_trace.data.crc32c import crc32c, masked_crc32c
from fathom_trace.data.tfrecord import read_records
from fathom_trace.errors import DataError
from fathom_trace.generated.tensorflow_example_pb2 import Example

BLACK, WHITE = (0, 0, 0), (255, 255, 255)


def slow_crc32c(data: bytes) -> int:
    """The remainder of the message's polynomial, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def slow_masked(data: bytes) -> int:
    crc = slow_crc32c(data)
    return (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def framed(payload: bytes) -> bytes:
    """One record of a TFRecord file, by the published layout. Checksums of long payloads by the reader's own function, for speed."""
    checksum = slow_masked(payload) if len(payload) < 2_000 else masked_crc32c(payload)
    length = struct.pack("<Q", len(payload))
    return length + struct.pack("<I", slow_masked(length)) + payload + struct.pack("<I", checksum)


def jpeg(picture: Image.Image, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return stream.getvalue()


def plain(colour: tuple[int, ...], width: int = 48, height: int = 32, mode: str = "RGB") -> bytes:
    return jpeg(Image.new(mode, (width, height), colour if mode != "L" else colour[0]))


def example(encoded: bytes | None = None, label: int | None = 1, boxes: list[tuple[float, float, float, float]] | None = None) -> Any:
    """A record; `boxes` are ymin, xmin, ymax, xmax."""
    made = Example()
    if encoded is not None:
        made.features.feature["image/encoded"].bytes_list.value.append(encoded)
    if label is not None:
        made.features.feature["image/class/label"].int64_list.value.append(label)
    for side, values in zip(("ymin", "xmin", "ymax", "xmax"), zip(*(boxes or []), strict=True), strict=False):
        made.features.feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    return made


def write(path: Path, *records: Any) -> Path:
    path.write_bytes(b"".join(framed(r if isinstance(r, bytes) else r.SerializeToString()) for r in records))
    return path


def batches(folder: Path, mode: str = "training", batch_size: int = 2, seed: int = 0, **more: Any) -> Iterator[dict[str, Any]]:
    settings: dict[str, Any] = {"height": 20, "width": 30, "classes": 1000} | more
    return imagenet.read_batches(folder, settings["height"], settings["width"], settings["classes"], mode, batch_size, seed)


# --- checksums and records ---


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums_are_those_of_the_standard(data: bytes, expected: int) -> None:
    """RFC 3720, appendix B.4, and the check value of the CRC catalogue."""
    assert crc32c(data) == expected


@pytest.mark.parametrize("length", [1, 7, 127, 128, 129, 255, 256, 257, 5000])
def test_checksums_of_long_messages_equal_the_bit_by_bit_division(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == slow_crc32c(data)
    assert masked_crc32c(data) == slow_masked(data)


def test_records_are_read_in_order(tmp_path: Path) -> None:
    payloads = [b"one", b"", bytes(700), b"four"]
    assert list(read_records(write(tmp_path / "f", *payloads))) == payloads


def test_every_cut_within_a_record_is_noticed(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", b"first", b"second").read_bytes()
    border = len(framed(b"first"))
    for length in range(1, len(whole)):
        path = tmp_path / "cut"
        path.write_bytes(whole[:length])
        if length == border:
            assert list(read_records(path)) == [b"first"]
            continue
        number = int(length > border)
        with pytest.raises(DataError, match=rf"cut: record {number} at byte {number * border}: .*(ends after|are left)"):
            list(read_records(path))


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", b"first").read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path = tmp_path / "flipped"
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError, match="record 0 at byte 0: expected checksum"):
            list(read_records(path))


def test_a_compressed_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "train-0"
    path.write_bytes(gzip.compress(framed(b"first")))
    with pytest.raises(DataError, match="is this an uncompressed TFRecord file"):
        list(read_records(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: cannot be read: No such file"):
        list(read_records(tmp_path / "nothing"))


# --- images and classes ---


def test_images_are_scaled_to_their_range_and_resized(tmp_path: Path) -> None:
    """Height and width differ, so that they cannot be exchanged unseen."""
    write(tmp_path / "train-00000-of-00001", example(plain((255, 0, 0))), example(plain(WHITE), label=1000))
    batch = next(batches(tmp_path))
    assert batch["image"].shape == (2, 20, 30, 3)
    assert batch["image"].dtype == np.float32
    assert np.abs(batch["image"]).max() <= 1
    np.testing.assert_allclose(batch["image"][0], np.broadcast_to([1, -1, -1], (20, 30, 3)), atol=0.03)
    np.testing.assert_allclose(batch["image"][1], 1, atol=0.03)
    assert batch["label"].dtype == np.int32


@pytest.mark.parametrize(("classes", "expected"), [(1000, [0, 999]), (1001, [1, 1000])])
def test_labels_become_classes(tmp_path: Path, classes: int, expected: list[int]) -> None:
    """Labels run from 1; a network with a background class keeps them, one without begins at 0."""
    write(tmp_path / "train-0", example(plain(BLACK), label=1), example(plain(BLACK), label=1000))
    batch = next(batches(tmp_path, classes=classes))
    assert batch["label"].tolist() == expected
    [spec] = [s for s in imagenet.input_specs(20, 30, classes, "training", 2) if s.name == "label"]
    assert [spec.low, spec.high] == expected


def test_a_label_beyond_the_networks_classes_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-0", example(plain(BLACK), label=3), example(plain(BLACK), label=11))
    with pytest.raises(
        DataError, match=r"train-0: record 1: label 11 is class 10, but the model has 10 classes; pass --set classes=1000"
    ):
        next(batches(tmp_path, classes=10))


def test_training_and_inference_read_their_own_shards(tmp_path: Path) -> None:
    write(tmp_path / "train-0", example(plain(BLACK)))
    write(tmp_path / "validation-0", example(plain(WHITE)))
    assert next(batches(tmp_path, "training"))["image"].mean() < -0.9
    inference = next(batches(tmp_path, "inference"))
    assert set(inference) == {"image"}
    assert inference["image"].mean() > 0.9


def test_inference_takes_everything_in_order_and_begins_again(tmp_path: Path) -> None:
    levels = [0, 60, 120, 180, 240]
    grey = [example(plain((level,) * 3)) for level in levels]
    write(tmp_path / "validation-0", *grey[:2])
    write(tmp_path / "validation-1", *grey[2:])
    seen = np.concatenate([b["image"].mean(axis=(1, 2, 3)) for b in islice(batches(tmp_path, "inference"), 4)])
    np.testing.assert_allclose((seen + 1) * 127.5, [*levels, *levels[:3]], atol=3)


def test_training_shuffles_the_shards_of_every_pass_by_the_seed(tmp_path: Path) -> None:
    for shard in range(8):
        write(tmp_path / f"train-{shard}", example(plain(BLACK), label=shard + 1))

    def orders(seed: int) -> list[list[int]]:
        return [b["label"].tolist() for b in islice(batches(tmp_path, batch_size=8, seed=seed), 3)]

    found = orders(seed=1)
    assert all(sorted(order) == list(range(8)) for order in found)
    assert len(set(map(tuple, found))) > 1
    assert orders(seed=1) == found
    assert orders(seed=2) != found


def test_inference_takes_the_central_seven_eighths(tmp_path: Path) -> None:
    """A white frame of 1/16 of each side around black: 2 of 32 and 4 of 64 pixels. What is left needs no resampling."""
    picture = Image.new("RGB", (64, 32), WHITE)
    picture.paste(BLACK, (4, 2, 60, 30))
    picture.putpixel((4, 2), WHITE)
    write(tmp_path / "validation-0", example(jpeg(picture, "PNG")))
    [image] = next(batches(tmp_path, "inference", 1, height=28, width=56))["image"]
    assert np.argwhere(image[..., 0] > -1).tolist() == [[0, 0]]


def test_training_takes_random_parts_and_flips_some(tmp_path: Path) -> None:
    """Black on the left, white on the right: a part that is not flipped never grows darker to the right."""
    picture = Image.new("RGB", (64, 64), BLACK)
    picture.paste(WHITE, (32, 0, 64, 64))
    write(tmp_path / "train-0", example(jpeg(picture, "PNG")))
    images = next(batches(tmp_path, batch_size=60, seed=4))["image"]
    slopes = images[:, 0, -1, 0] - images[:, 0, 0, 0]
    assert (slopes > 0).any()
    assert (slopes < 0).any()
    assert len(np.unique(images.reshape(60, -1), axis=0)) > 20
    np.testing.assert_array_equal(next(batches(tmp_path, batch_size=60, seed=4))["image"], images)


def test_training_looks_at_the_boxes(tmp_path: Path) -> None:
    """A white box of 1/8 of each side in a corner of black. Most random parts miss it, unless the record names it."""
    picture = Image.new("RGB", (128, 128), BLACK)
    picture.paste(WHITE, (112, 112, 128, 128))
    encoded = jpeg(picture, "PNG")

    def white(boxes: list[tuple[float, float, float, float]]) -> int:
        write(tmp_path / "train-0", example(encoded, boxes=boxes))
        return int((next(batches(tmp_path, batch_size=50))["image"].max(axis=(1, 2, 3)) > 0).sum())

    assert white([]) < 40
    assert white([(0.875, 0.875, 1, 1)]) == 50


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_four_colour_images_become_rgb(tmp_path: Path, mode: str) -> None:
    write(tmp_path / "train-0", example(plain((255, 255, 255, 255)[: len(mode)], mode=mode)))
    assert next(batches(tmp_path, batch_size=1))["image"].shape == (1, 20, 30, 3)


def test_boxes_are_read_side_by_side(tmp_path: Path) -> None:
    boxes = [(0.125, 0.25, 0.5, 0.75), (0.0, 0.0, 1.0, 1.0)]
    [image] = imagenet.read_images(write(tmp_path / "train-0", example(plain(BLACK), label=7, boxes=boxes)))
    assert image.boxes.tolist() == [list(box) for box in boxes]
    assert image.label == 7


# --- files that are not what their names promise ---


def test_a_folder_without_shards_says_what_is_looked_for(tmp_path: Path) -> None:
    write(tmp_path / "train-0", example(plain(BLACK)))
    with pytest.raises(DataError, match=r"holds no file 'validation-\*'; inference reads ImageNet TFRecord shards"):
        batches(tmp_path, "inference")
    with pytest.raises(DataError, match=r"nowhere is not a folder; give one that holds ImageNet TFRecord shards 'train-\*'"):
        batches(tmp_path / "nowhere")


def test_shards_without_a_record_are_no_endless_loop(tmp_path: Path) -> None:
    write(tmp_path / "train-0")
    with pytest.raises(DataError, match="found 1 shards without a record"):
        next(batches(tmp_path))


def two_labels() -> Any:
    made = example(plain(BLACK))
    made.features.feature["image/class/label"].int64_list.value.append(2)
    return made


def text_label() -> Any:
    made = example(plain(BLACK), label=None)
    made.features.feature["image/class/label"].bytes_list.value.append(b"7")
    return made


def lone_side() -> Any:
    made = example(plain(BLACK))
    made.features.feature["image/object/bbox/xmin"].float_list.value.append(0.5)
    return made


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (example(None), r"expected the feature image/encoded .* has only: image/class/label"),
        (Example(), "no feature at all"),
        (example(plain(BLACK), label=None), "expected the feature image/class/label"),
        (two_labels(), "with one value in a int64_list, found 2 values"),
        (text_label(), "found a bytes_list"),
        (example(plain(BLACK), label=0), "expected an image/class/label from 1 to 1000, found 0"),
        (example(plain(BLACK), label=1001), "from 1 to 1000, found 1001"),
        (example(b"\xff\xd8 is how one begins"), "expected a JPEG image in image/encoded"),
        (example(plain(BLACK, 200, 200)[:-200]), "expected a JPEG image in image/encoded.*truncated"),
        (example(jpeg(Image.new("RGB", (9, 9)), "GIF")), "expected a JPEG image in image/encoded"),
        (lone_side(), "as many values in each of image/object/bbox/.*found 0 ymin, 1 xmin, 0 ymax, 0 xmax"),
        (example(plain(BLACK), boxes=[(0, 0, 1.5, 1)]), "in 0 to 1 with min <= max"),
        (example(plain(BLACK), boxes=[(0.5, 0, 0.25, 1)]), "in 0 to 1 with min <= max"),
        (example(plain(BLACK), boxes=[(float("nan"), 0, 1, 1)]), "in 0 to 1 with min <= max"),
        (b"\xff\xff\xff", "expected a tf.train.Example, found 3 bytes that are none"),
    ],
)
def test_a_wrong_record_is_named_with_what_was_expected(tmp_path: Path, record: Any, message: str) -> None:
    path = write(tmp_path / "train-0", example(plain(BLACK)), record)
    with pytest.raises(DataError, match=rf"{path}: record 1: .*{message}") as caught:
        next(batches(tmp_path))
    assert "\n" not in str(caught.value)


def test_pillow_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train-0", example(plain(BLACK)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'fathom-trace\[images\]'"):
        batches(tmp_path)


# --- against TensorFlow itself ---


@pytest.mark.capture
def test_files_written_by_tensorflow_are_read(tmp_path: Path) -> None:
    """With all features that TensorFlow's own converter writes."""
    tf = pytest.importorskip("tensorflow")

    def feature(values: list[Any]) -> Any:
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8))
    encoded = jpeg(picture)
    features = {
        "image/height": [60], "image/width": [80], "image/channels": [3], "image/colorspace": [b"RGB"], "image/format": [b"JPEG"],
        "image/class/label": [615], "image/class/synset": [b"n03623198"], "image/class/text": [b"knee pad"],
        "image/object/bbox/xmin": [0.125, 0.5], "image/object/bbox/xmax": [0.5, 0.75], "image/object/bbox/ymin": [0.25, 0.0],
        "image/object/bbox/ymax": [1.0, 0.5], "image/object/bbox/label": [615, 615], "image/filename": [b"a.JPEG"],
        "image/encoded": [encoded],
    }  # fmt: skip
    record = tf.train.Example(features=tf.train.Features(feature={k: feature(v) for k, v in features.items()})).SerializeToString()
    with tf.io.TFRecordWriter(str(tmp_path / "validation-00000-of-00128")) as writer:
        writer.write(record)
        writer.write(record)
    [path] = imagenet.shards(tmp_path, "inference")
    images = list(imagenet.read_images(path))
    assert [image.encoded for image in images] == [encoded, encoded]
    assert [image.label for image in images] == [615, 615]
    assert images[0].boxes.tolist() == [[0.25, 0.125, 1.0, 0.5], [0.0, 0.5, 0.5, 0.75]]


@pytest.mark.capture
def test_pixels_are_those_that_tensorflow_decodes(tmp_path: Path) -> None:
    """An image of 64 x 64 whose central 56 x 56 are asked for: no resampling. Decoders may differ by rounding, by 2 of 255 at most."""
    tf = pytest.importorskip("tensorflow")
    smooth = np.add.outer(np.arange(64), 2 * np.arange(64))[..., None] + np.array([0, 20, 40])
    encoded = jpeg(Image.fromarray(smooth.astype(np.uint8)))
    write(tmp_path / "validation-0", example(encoded))
    found = next(batches(tmp_path, "inference", 1, height=56, width=56))["image"][0]
    expected = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE").numpy()[4:60, 4:60] / 127.5 - 1
    np.testing.assert_allclose(found, expected, atol=2 / 127.5)


@pytest.mark.capture
@pytest.mark.parametrize("name", ["vgg", "alexnet", "residual"])
def test_a_capture_of_real_images_runs_to_its_end(tmp_path: Path, name: str) -> None:
    pytest.importorskip("tensorflow")
    from fathom_trace.capture import CaptureRequest, Plan, capture_workload
    from fathom_trace.checks import check

    generator = np.random.default_rng(0)
    encoded = [jpeg(Image.fromarray(generator.integers(0, 256, (70, 90, 3)).astype(np.uint8))) for _ in range(3)]
    write(tmp_path / "train-0", *(example(e, label=i + 1) for i, e in enumerate(encoded)))
    trace = capture_workload(CaptureRequest(name, preset="tiny", data=tmp_path, plan=Plan(steps=1)))
    assert check(trace).complete
    assert trace.provenance["data"] == str(tmp_path)
