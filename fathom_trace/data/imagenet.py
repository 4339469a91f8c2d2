"""ImageNet from TFRecord shards, for every workload that classifies images: labelled JPEG images into scaled batches.

The shards are those of TensorFlow's `build_imagenet_data.py`: files `train-*` and `validation-*` of `tf.train.Example` records with

    image/encoded                            bytes, one JPEG image
    image/class/label                        int64, 1 to 1000 (0 is kept for a background class)
    image/object/bbox/{xmin,ymin,xmax,ymax}  floats in 0 to 1, one a box; may be absent

Images are prepared as Fathom's reader did: pixels scaled to [-1, 1] and resized bilinearly from a region. In training the region is
random (5 to 100% of the image's area, aspect ratio 3/4 to 4/3, at least a tenth of a box where there is one) and flipped at random;
in inference it is the central 87.5% of each side. Fathom's random changes of colour are left out. Training takes the shards in
seeded random order and records as they lie, for shards are shuffled when they are made; inference takes everything in order. Both
begin again at the end.

Decoding uses Pillow and not TensorFlow, so that it can run beside a session without touching its graph or its threads.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fathom_trace.data.tfrecord import read_records
from fathom_trace.errors import DataError, one_line
from fathom_trace.generated.tensorflow_example_pb2 import Example, Features
from fathom_trace.workload import InputSpec, Values

FORMAT = (
    "ImageNet TFRecord shards train-* (training) and validation-* (inference): tf.train.Example records with image/encoded (JPEG),"
    " image/class/label (1 to 1000) and, optionally, image/object/bbox/{xmin,ymin,xmax,ymax}; decoding needs Pillow"
)
LABELS = 1000
CHANNELS = 3
_SHARDS = {"training": "train-*", "inference": "validation-*"}
_BOX_SIDES = ("ymin", "xmin", "ymax", "xmax")

_CENTRAL_SHARE = 0.875
_AREA_RANGE = (0.05, 1.0)
_ASPECT_RANGE = (3 / 4, 4 / 3)
_COVERED_SHARE = 0.1
_ATTEMPTS = 100

_FREE_PIXELS, _PIXELS_PER_BYTE = 24_000_000, 100
"""An image may unpack to 24 million pixels, or to 100 times its bytes where that is more: photographs have about 10 pixels a byte."""

Region = tuple[float, float, float, float]


@dataclass(frozen=True)
class LabelledImage:
    """One record. `boxes` is [boxes, 4] of ymin, xmin, ymax, xmax as fractions; `origin` names file and record for messages."""

    encoded: bytes
    label: int
    boxes: NDArray[np.float32]
    origin: str


def input_specs(height: int, width: int, classes: int, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """`image` [batch, height, width, 3] in [-1, 1] and, in training, `label` [batch]."""
    image = InputSpec("image", (batch_size, height, width, CHANNELS), "float32", -1, 1, "input", "RGB pixels")
    if mode == "inference":
        return (image,)
    first = _class_of(1, classes)
    return (image, InputSpec("label", (batch_size,), "int32", first, classes - 1, "label", "class of each image"))


def read_batches(folder: Path, height: int, width: int, classes: int, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches without end: `image` [batch, height, width, 3] float32 in [-1, 1] and, in training, `label` [batch] int32.

    Label l of 1 to 1000 is class l - 1; in a model of more than 1000 classes, whose class 0 is the background, it is class l.

    Raises:
        DataError: there is no shard, Pillow is missing, or a record is not what its file's name promises.
    """
    _pillow()
    return _batches(shards(folder, mode), (height, width), classes, mode, batch_size, seed)


def shards(folder: Path, mode: str) -> list[Path]:
    """The shards that `mode` reads, by name.

    Raises:
        DataError: `folder` is no folder, or holds none.
    """
    pattern = _SHARDS[mode]
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds ImageNet TFRecord shards '{pattern}'")
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if not found:
        raise DataError(f"{folder} holds no file '{pattern}'; {mode} reads ImageNet TFRecord shards of that name")
    return found


def read_images(path: Path) -> Iterator[LabelledImage]:
    """The records of one shard, checked but not decoded.

    Raises:
        DataError: a record is damaged, is no `tf.train.Example`, or lacks a feature; names the file, the record and what was expected.
    """
    for number, payload in enumerate(read_records(path)):
        origin = f"{path}: record {number}"
        try:
            features = Example.FromString(payload).features
        except DecodeError:
            raise DataError(f"{origin}: expected a tf.train.Example, found {len(payload)} bytes that are none") from None
        encoded = _single(features, "image/encoded", "bytes_list", origin)
        label = _single(features, "image/class/label", "int64_list", origin)
        if not 1 <= label <= LABELS:
            raise DataError(f"{origin}: expected an image/class/label from 1 to {LABELS}, found {label}")
        yield LabelledImage(encoded, label, _boxes(features, origin), origin)


def _single(features: Features, name: str, kind: str, origin: str) -> Any:
    """The only value of a feature."""
    expected = f"{origin}: expected the feature {name} with one value in a {kind}"
    if name not in features.feature:
        raise DataError(f"{expected}, but the record has only: {', '.join(sorted(features.feature)) or 'no feature at all'}")
    feature = features.feature[name]
    found = feature.WhichOneof("kind")
    if found != kind:
        raise DataError(f"{expected}, found {'an empty feature' if found is None else f'a {found}'}")
    values = getattr(feature, kind).value
    if len(values) != 1:
        raise DataError(f"{expected}, found {len(values)} values")
    return values[0]


def _boxes(features: Features, origin: str) -> NDArray[np.float32]:
    names = [f"image/object/bbox/{side}" for side in _BOX_SIDES]
    sides = [list(features.feature[name].float_list.value) if name in features.feature else [] for name in names]
    if len({len(side) for side in sides}) > 1:
        counts = ", ".join(f"{len(side)} {name}" for name, side in zip(_BOX_SIDES, sides, strict=True))
        raise DataError(f"{origin}: expected as many values in each of image/object/bbox/*, found {counts}")
    boxes = np.array(sides, np.float32).T.reshape(-1, len(_BOX_SIDES))
    if not np.all((boxes >= 0) & (boxes <= 1)) or np.any(boxes[:, :2] > boxes[:, 2:]):
        raise DataError(f"{origin}: expected image/object/bbox/* in 0 to 1 with min <= max, found {boxes.tolist()}")
    return boxes


def _class_of(label: int, classes: int) -> int:
    return label if classes > LABELS else label - 1


def _batches(paths: list[Path], size: tuple[int, int], classes: int, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    generator = np.random.default_rng(seed)
    images = _endless(paths, mode, generator)
    while True:
        pixels = np.empty((batch_size, *size, CHANNELS), np.float32)
        labels = np.empty(batch_size, np.int32)
        for row in range(batch_size):
            image = next(images)
            labels[row] = _class_of(image.label, classes)
            if labels[row] >= classes:
                raise DataError(
                    f"{image.origin}: label {image.label} is class {labels[row]}, but the model has {classes}"
                    f" classes; pass --set classes={LABELS}"
                )
            pixels[row] = _prepare(image, size, mode, generator)
        yield {"image": pixels, "label": labels} if mode == "training" else {"image": pixels}


def _endless(paths: list[Path], mode: str, generator: np.random.Generator) -> Iterator[LabelledImage]:
    while True:
        order = generator.permutation(len(paths)) if mode == "training" else np.arange(len(paths))
        count = 0
        for place in order:
            for image in read_images(paths[place]):
                count += 1
                yield image
        if not count:
            raise DataError(
                f"{paths[0].parent}: expected at least one image in {_SHARDS[mode]}, found {len(paths)} shards without a record"
            )


def _prepare(image: LabelledImage, size: tuple[int, int], mode: str, generator: np.random.Generator) -> NDArray[np.float32]:
    """The decoded image, cropped and resized to `size` (height, width), as [height, width, 3] in [-1, 1]."""
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            # One image of the original data set is a PNG under a JPEG's name.
            picture = pillow.open(io.BytesIO(image.encoded), formats=("JPEG", "PNG"))
            _refuse_bomb(picture.size, image)
            picture = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise DataError(f"{image.origin}: expected a JPEG image in image/encoded: {one_line(error)}") from None
    width, height = picture.size
    if mode == "training":
        region = _random_region(height, width, image.boxes, generator)
        is_flipped = generator.random() < 0.5
    else:
        region = _central_region(height, width)
        is_flipped = False
    picture = picture.resize((size[1], size[0]), pillow.Resampling.BILINEAR, box=region)
    pixels = np.asarray(picture, np.float32) / np.float32(127.5) - np.float32(1)
    return pixels[:, ::-1] if is_flipped else pixels


def _refuse_bomb(size: tuple[int, int], image: LabelledImage) -> None:
    """Raises `DataError` for more pixels than so few bytes hold of a photograph."""
    pixels, most = math.prod(size), max(_FREE_PIXELS, _PIXELS_PER_BYTE * len(image.encoded))
    if pixels > most:
        raise DataError(
            f"{image.origin}: expected a photograph in image/encoded, found {size[0]} x {size[1]} pixels in {len(image.encoded)} bytes"
        )


def _central_region(height: int, width: int) -> Region:
    """left, top, right, bottom of the central part."""
    edge = (1 - _CENTRAL_SHARE) / 2
    return (width * edge, height * edge, width * (1 - edge), height * (1 - edge))


def _random_region(height: int, width: int, boxes: NDArray[np.float32], generator: np.random.Generator) -> Region:
    """left, top, right, bottom of a random part; the whole image where no attempt covers enough of a box."""
    for _ in range(_ATTEMPTS):
        area = generator.uniform(*_AREA_RANGE) * height * width
        aspect = generator.uniform(*_ASPECT_RANGE)
        part_width, part_height = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if part_width > width or part_height > height:
            continue
        left, top = generator.uniform(0, width - part_width), generator.uniform(0, height - part_height)
        region = (left, top, left + part_width, top + part_height)
        if not len(boxes) or _covers(region, boxes * np.array([height, width, height, width], np.float32)):
            return region
    return (0, 0, width, height)


def _covers(region: Region, boxes: NDArray[np.float32]) -> bool:
    """True when the region holds a tenth of the area of at least one box (in pixels)."""
    left, top, right, bottom = region
    shared_height = np.minimum(bottom, boxes[:, 2]) - np.maximum(top, boxes[:, 0])
    shared_width = np.minimum(right, boxes[:, 3]) - np.maximum(left, boxes[:, 1])
    shared = np.maximum(shared_height, 0) * np.maximum(shared_width, 0)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return bool(np.any(shared >= _COVERED_SHARE * areas))


def _pillow() -> Any:
    """The `PIL.Image` module.

    Raises:
        DataError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError(
            "ImageNet's JPEG images are decoded with Pillow, which is not installed: pip install 'fathom-trace[images]'"
        ) from None
    return Image
