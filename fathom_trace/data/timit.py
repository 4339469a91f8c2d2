"""TIMIT: speech from NIST SPHERE files and phonemes from .PHN files, into padded minibatches of features and labels.

The tree is that of the corpus, in upper or lower case: TRAIN and TEST, dialects, speakers, and for each utterance a `.WAV` (SPHERE,
16 kHz, 16-bit PCM, one channel) and a `.PHN` whose lines are first sample, last sample, phoneme.

Features are those that Fathom computed, which are those of Graves et al., "Connectionist Temporal Classification", ICML 2006,
section 5.1: frames of 10 ms every 5 ms; 12 mel-frequency cepstral coefficients of 26 filters and the logarithm of the energy, and
the first derivatives of all; 26 values a frame, each with mean 0 and deviation 1. Normalised are the frames of one utterance, as in
Fathom (the paper: of the whole training set). What the paper leaves open is as in HTK (Young et al., "The HTK Book", chapter 5):
pre-emphasis 0.97, Hamming windows, triangular filters of equal width on the mel scale up to 8 kHz, derivatives by regression over
two frames to each side.

Training takes the utterances of TRAIN in a seeded random order, anew in every pass; inference takes those of TEST by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import DataError
from fathom_trace.workload import Values

FORMAT = (
    "the TIMIT tree: TRAIN (training) and TEST (inference) with a NIST SPHERE .WAV (16 kHz, 16-bit PCM, one channel) and a .PHN"
    " (lines of first sample, last sample, phoneme) for each utterance"
)

_SYMBOLS = (
    "b bcl d dcl g gcl p pcl t tcl k kcl dx q jh ch s sh z zh f th v dh m n ng em en eng nx l r w y hh hv el"
    " iy ih eh ey ae aa aw ay ah ao oy ow uh uw ux er ax ix axr ax-h pau epi h#"
)
PHONEMES = tuple(_SYMBOLS.split())
"""The 61 phonetic symbols of the corpus, in the order of its PHONCODE.DOC: a phoneme's label is its place."""

FEATURES = 26
SAMPLE_RATE = 16_000

_WINDOW, _HOP, _TRANSFORM = 160, 80, 512
"""In samples: 10 ms, 5 ms, and the length of the Fourier transform."""
_FILTERS, _CEPSTRA = 26, 12
_PRE_EMPHASIS = 0.97
_REGRESSION_FRAMES = 2
_LEAST_POWER, _LEAST_DEVIATION = 1e-10, 1e-9

_PARTS = {"training": "train", "inference": "test"}
_SPHERE = b"NIST_1A\n"
_NUMBER = re.compile("[0-9]{1,12}")


@dataclass(frozen=True)
class Utterance:
    """The two files of one utterance."""

    audio: Path
    phonemes: Path


def read_batches(folder: Path, frames: int, labels: int, context: int, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Minibatches without end.

    `features` [batch, frames, 26 (2 context + 1)] float32 and `frame_length` [batch] int32; in training also `label` [batch, labels]
    and `label_length` [batch], int32. What lies beyond an utterance is 0.

    Raises:
        DataError: there is no utterance; and, while batches are made, a file is not what its name promises or does not fit.
    """
    return _batches(utterances(folder, mode), (frames, labels, context), mode, batch_size, seed)


def utterances(folder: Path, mode: str) -> list[Utterance]:
    """The utterances that `mode` reads, by name.

    Raises:
        DataError: `folder` is no folder, holds none, or an utterance lacks its audio.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the one that holds TIMIT's TRAIN and TEST")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".phn", ".wav"))
    files = [path for path in files if _PARTS[mode] in [part.lower() for part in path.relative_to(folder).parts[:-1]]]
    audio = {path.with_suffix("").as_posix().lower(): path for path in files if path.suffix.lower() == ".wav"}
    found = []
    for path in files:
        if path.suffix.lower() == ".phn":
            beside = audio.get(path.with_suffix("").as_posix().lower())
            if beside is None:
                raise DataError(f"{path}: expected a .WAV file of the same name beside it, found none")
            found.append(Utterance(beside, path))
    if not found:
        raise DataError(f"{folder} holds no .PHN file below a folder {_PARTS[mode].upper()}, which {mode} reads")
    return found


def read_sphere(path: Path) -> NDArray[np.int16]:
    """The samples of a SPHERE file.

    Raises:
        DataError: the file cannot be read, or is not 16 kHz, 16-bit PCM of one channel in SPHERE.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if not data.startswith(_SPHERE):
        kind = "a RIFF file" if data.startswith(b"RIFF") else f"{data[:8]!r}"
        raise DataError(f"{path}: expected a NIST SPHERE file, which begins with NIST_1A, found {kind}")
    size = re.match(rb"\s*(\d+)\n", data[len(_SPHERE) : len(_SPHERE) + 8])
    if size is None or int(size[1]) > len(data):
        raise DataError(f"{path}: expected the size of the SPHERE header in its second line, and as many bytes")
    header = data[: int(size[1])]
    fields = {
        name.decode("ascii", "replace"): value.decode("ascii", "replace")
        for name, value in re.findall(rb"(?m)^(\S+) -\S+ (.*?)\s*$", header)
    }
    expected = {"sample_rate": "16000", "channel_count": "1", "sample_n_bytes": "2", "sample_coding": "pcm"}
    for name, value in expected.items():
        found = fields.get(name, "pcm" if name == "sample_coding" else "nothing")
        if found != value:
            raise DataError(f"{path}: expected {name} {value} in the SPHERE header, found {found}")
    order = {"01": "<i2", "10": ">i2"}.get(fields.get("sample_byte_format", ""))
    if order is None:
        raise DataError(f"{path}: expected sample_byte_format 01 or 10, found {fields.get('sample_byte_format', 'nothing')}")
    body = data[len(header) :]
    count = fields.get("sample_count", "")
    if not _NUMBER.fullmatch(count) or int(count) * 2 > len(body):
        raise DataError(f"{path}: the header promises {count or 'no number of'} samples, found {len(body) // 2}")
    return np.frombuffer(body, order, int(count)).astype(np.int16)


def read_phonemes(path: Path) -> NDArray[np.int32]:
    """The labels of a .PHN file, [phonemes].

    Raises:
        DataError: a line is not what it should be; names the line.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 3 or not all(map(_NUMBER.fullmatch, parts[:2])) or int(parts[0]) > int(parts[1]):
            raise DataError(f"{path}: line {number}: expected first sample, last sample, phoneme, found '{line}'")
        if parts[2] not in PHONEMES:
            raise DataError(f"{path}: line {number}: expected one of TIMIT's 61 phonemes, found '{parts[2]}'")
        found.append(PHONEMES.index(parts[2]))
    if not found:
        raise DataError(f"{path}: expected at least one phoneme, found none")
    return np.array(found, np.int32)


def features(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    """26 values a frame, [frames, 26]: 12 cepstral coefficients, the energy, and the derivatives of the 13, each normalised.

    A value that never changes is 0. Needs at least 160 samples.
    """
    signal = samples.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(signal, _WINDOW)[::_HOP]
    energy = np.log(np.maximum(np.sum(windows**2, axis=1), _LEAST_POWER))
    emphasised = windows - _PRE_EMPHASIS * np.concatenate([windows[:, :1], windows[:, :-1]], axis=1)
    power = np.abs(np.fft.rfft(emphasised * np.hamming(_WINDOW), _TRANSFORM)) ** 2
    logarithm = np.log(np.maximum(power @ _mel_filters().T, _LEAST_POWER))
    angle = np.pi / _FILTERS * np.outer(np.arange(1, _CEPSTRA + 1), np.arange(_FILTERS) + 0.5)
    static = np.concatenate([logarithm @ np.cos(angle).T, energy[:, None]], axis=1)
    both = np.concatenate([static, _derivative(static)], axis=1)
    deviation = both.std(axis=0)
    normalised = (both - both.mean(axis=0)) / np.maximum(deviation, _LEAST_DEVIATION)
    return np.where(deviation > _LEAST_DEVIATION, normalised, 0).astype(np.float32)


@cache
def _mel_filters() -> NDArray[np.float64]:
    """Weights of 26 triangles on the bins of the spectrum, [filters, bins]: each from the centre below to the centre above its own."""
    highest = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    edges = np.linspace(0, highest, _FILTERS + 2)
    bins = 2595 * np.log10(1 + np.arange(_TRANSFORM // 2 + 1) * SAMPLE_RATE / _TRANSFORM / 700)
    width = edges[1]
    return np.asarray(np.maximum(0, 1 - np.abs(bins - edges[1:-1, None]) / width))


def _derivative(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """HTK's regression: sum over k of k (c[t + k] - c[t - k]) / (2 sum of k^2), the ends repeated."""
    count, reach = len(values), _REGRESSION_FRAMES
    padded = np.pad(values, ((reach, reach), (0, 0)), mode="edge")
    slopes = [k * (padded[reach + k : reach + k + count] - padded[reach - k : reach - k + count]) for k in range(1, reach + 1)]
    return np.asarray(sum(slopes) / (2 * sum(k * k for k in range(1, reach + 1))))


def stack_context(frames: NDArray[np.float32], context: int) -> NDArray[np.float32]:
    """Each frame with `context` frames to each side, oldest first, [frames, (2 context + 1) x features]; beyond the ends are zeros."""
    padded = np.pad(frames, ((context, context), (0, 0)))
    return np.concatenate([padded[k : k + len(frames)] for k in range(2 * context + 1)], axis=1)


def frames_needed(labels: NDArray[np.int32]) -> int:
    """The fewest frames in which CTC can write these labels: one each, and a blank between two that are alike."""
    return len(labels) + sum(1 for a, b in pairwise(labels.tolist()) if a == b)


def _batches(found: list[Utterance], sizes: tuple[int, int, int], mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    frames, labels, context = sizes
    order = _endless(found, mode, np.random.default_rng(seed))
    while True:
        values: Values = {
            "features": np.zeros((batch_size, frames, FEATURES * (2 * context + 1)), np.float32),
            "frame_length": np.zeros(batch_size, np.int32),
        }
        if mode == "training":
            values |= {"label": np.zeros((batch_size, labels), np.int32), "label_length": np.zeros(batch_size, np.int32)}
        for row in range(batch_size):
            utterance = next(order)
            heard = _heard(utterance, frames)
            values["features"][row, : len(heard)] = stack_context(heard, context)
            values["frame_length"][row] = len(heard)
            if mode == "training":
                written = _written(utterance, labels, len(heard))
                values["label"][row, : len(written)] = written
                values["label_length"][row] = len(written)
        yield values


def _heard(utterance: Utterance, frames: int) -> NDArray[np.float32]:
    """The features of an utterance.

    Raises:
        DataError: it has no frame, or more than the model takes.
    """
    samples = read_sphere(utterance.audio)
    if len(samples) < _WINDOW:
        raise DataError(f"{utterance.audio}: expected at least the {_WINDOW} samples of a frame, found {len(samples)}")
    found = features(samples)
    if len(found) > frames:
        raise DataError(f"{utterance.audio}: has {len(found)} frames, but the model takes {frames}; pass --set frames={len(found)}")
    return found


def _written(utterance: Utterance, labels: int, frames: int) -> NDArray[np.int32]:
    """The labels of an utterance of so many frames.

    Raises:
        DataError: it has more than the model takes, or more than CTC can write in its frames.
    """
    path = utterance.phonemes
    found = read_phonemes(path)
    if len(found) > labels:
        raise DataError(f"{path}: has {len(found)} phonemes, but the model takes {labels}; pass --set labels={len(found)}")
    needed = frames_needed(found)
    if needed > frames:
        raise DataError(f"{path}: expected phonemes that {frames} frames of audio can hold, found {len(found)}, which need {needed}")
    return found


def _endless(found: list[Utterance], mode: str, generator: np.random.Generator) -> Iterator[Utterance]:
    while True:
        yield from (found[k] for k in (generator.permutation(len(found)) if mode == "training" else range(len(found))))
