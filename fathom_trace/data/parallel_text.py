"""Sentence pairs as padded word numbers in buckets, from two line-aligned text files or made up.

A folder holds `train.en` and `train.fr` (training) or, besides them, `test.en` (inference); the two ends are options. Text is UTF-8,
one sentence a line, and line n of one file is the translation of line n of the other. As in the original of Fathom's workload, a
sentence is cut at white space and around .,!?"':;)( and every digit becomes 0. Words are numbered by falling frequency in the training
text, equal ones in order of appearance, after PAD 0, GO 1, EOS 2 and UNK 3, which stands for every word that does not fit into the
vocabulary.

A pair belongs to the first bucket (S, T) whose source length is below S and whose target length, with EOS, is below T. The source is
padded to S and then reversed: PAD comes first. The decoder reads GO, the words, EOS, PAD up to T; its target at each step is what it
reads at the next, with weight 0 at PAD and at the last step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fathom_trace.errors import DataError
from fathom_trace.workload import InputSpec, Values

FORMAT = (
    "line-aligned UTF-8 text, one sentence a line: train.en and train.fr, and for inference also test.en; `--set source_language=` and"
    " target_language= name other endings"
)
BUCKETS = ((5, 10), (10, 15), (20, 25), (40, 50))
PAD, GO, EOS, UNK = range(4)
SPECIAL = 4
"""Words of the vocabulary that are none of a text: the first is number 4."""

_TOKEN = re.compile(r"[.,!?\"':;)(]|[^\s.,!?\"':;)(]+")
_DIGIT = re.compile(r"\d")

_MEDIAN_LENGTH, _LENGTH_SPREAD = 20.0, 0.6
_RATIO, _RATIO_SPREAD = 1.15, 0.2
_DRAWS = 1024

Words = Sequence[int]


@dataclass(frozen=True)
class Shape:
    """What the model takes: `vocabulary` words a side, and the bucket by its place in `BUCKETS`."""

    vocabulary: int
    bucket: int

    @property
    def source_length(self) -> int:
        """Steps of the encoder."""
        return BUCKETS[self.bucket][0]

    @property
    def target_length(self) -> int:
        """Steps of the decoder."""
        return BUCKETS[self.bucket][1]


def input_specs(shape: Shape, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """`source` [S, batch]; in training `decoder_input`, `target`, `weight` [T, batch], in inference `start` [batch]. Time is first."""
    last = shape.vocabulary - 1
    target = (shape.target_length, batch_size)
    source = InputSpec(
        "source", (shape.source_length, batch_size), "int32", 0, last, "input", "words of the source, padded and reversed"
    )
    if mode == "inference":
        return (source, InputSpec("start", (batch_size,), "int32", GO, GO, "input", "GO, the first word that the decoder reads"))
    return (
        source,
        InputSpec("decoder_input", target, "int32", 0, last, "input", "GO, the words of the target, EOS, padding"),
        InputSpec("target", target, "int32", 0, last, "label", "the word to be predicted at each step"),
        InputSpec("weight", target, "float32", 0, 1, "label", "1, or 0 at padding and at the last step"),
    )


def tokenize(line: str) -> list[str]:
    """The words of a sentence.

    >>> tokenize("He paid 25 dollars, didn't he?")
    ['He', 'paid', '00', 'dollars', ',', 'didn', "'", 't', 'he', '?']
    """
    return _TOKEN.findall(_DIGIT.sub("0", line))


def number_words(sentences: Iterable[Sequence[str]], vocabulary: int) -> dict[str, int]:
    """The most frequent words, numbered from `SPECIAL` by falling frequency, up to `vocabulary` - 1."""
    counts = Counter(word for sentence in sentences for word in sentence)
    # Sorting is stable, and a Counter lists words in the order in which it met them.
    ordered = sorted(counts, key=counts.__getitem__, reverse=True)
    return {word: number for number, word in enumerate(ordered[: vocabulary - SPECIAL], start=SPECIAL)}


def bucket_of(source_length: int, target_length: int = 0) -> int:
    """Place of the first bucket that takes a pair of these lengths (the target's without EOS); -1 if none does."""
    for place, (source, target) in enumerate(BUCKETS):
        if source_length < source and target_length + 1 < target:
            return place
    return -1


def pack_sources(sources: Sequence[Words], length: int) -> NDArray[np.int32]:
    """[length, batch]: each source padded at its end to `length`, then reversed."""
    packed = np.full((length, len(sources)), PAD, np.int32)
    for column, words in enumerate(sources):
        packed[length - len(words) :, column] = words[::-1]
    return packed


def pack(pairs: Sequence[tuple[Words, Words]], shape: Shape, mode: str) -> Values:
    """The inputs of a step from pairs of source and target words; inference takes no notice of the targets."""
    source = pack_sources([s for s, _ in pairs], shape.source_length)
    if mode == "inference":
        return {"source": source, "start": np.full(len(pairs), GO, np.int32)}
    decoder_input = np.full((shape.target_length, len(pairs)), PAD, np.int32)
    for column, (_, words) in enumerate(pairs):
        decoder_input[: len(words) + 2, column] = [GO, *words, EOS]
    target = np.full_like(decoder_input, PAD)
    target[:-1] = decoder_input[1:]
    weight = (target != PAD).astype(np.float32)
    weight[-1] = 0
    return {"source": source, "decoder_input": decoder_input, "target": target, "weight": weight}


def synthetic_batches(shape: Shape, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches without end of made-up pairs.

    Words are drawn log-uniformly over their ranks (Zipf's law, which the sampled softmax assumes too). Lengths are drawn until they
    fit into the bucket: sources log-normal around 20 words, targets 1.15 times as long with a spread of 20%, as English and French are
    (assumed here, not measured on WMT).
    """
    generator = np.random.default_rng(seed)
    lengths = _lengths(generator, shape.bucket)
    while True:
        pairs = []
        for source, target in islice(lengths, batch_size):
            words = _zipf(generator, source + target, shape.vocabulary)
            pairs.append((words[:source], words[source:]))
        yield pack(pairs, shape, mode)


def _lengths(generator: np.random.Generator, bucket: int) -> Iterator[tuple[int, int]]:
    while True:
        source = _MEDIAN_LENGTH * np.exp(_LENGTH_SPREAD * generator.standard_normal(_DRAWS))
        target = source * _RATIO * np.exp(_RATIO_SPREAD * generator.standard_normal(_DRAWS))
        for source_length, target_length in np.maximum(np.stack([source, target], 1).round(), 1).astype(int).tolist():
            if bucket_of(source_length, target_length) == bucket:
                yield source_length, target_length


def _zipf(generator: np.random.Generator, count: int, vocabulary: int) -> list[int]:
    """Word numbers from `SPECIAL` on: rank r of n with probability log((r + 2) / (r + 1)) / log(n + 1)."""
    size = vocabulary - SPECIAL
    ranks = np.exp(generator.random(count) * np.log(size + 1)).astype(int) - 1
    numbers: list[int] = (np.minimum(ranks, size - 1) + SPECIAL).tolist()
    return numbers


def read_batches(
    folder: Path, languages: tuple[str, str], limit: int, shape: Shape, mode: str, batch_size: int, seed: int
) -> Iterator[Values]:
    """Batches without end of the real sentences that belong to the bucket: in training drawn at random, in inference as they lie.

    `languages` are the endings of source and target. Of each file the first `limit` lines are read, or all with 0. Inference reads
    sources only and takes their bucket by their own length.

    Raises:
        DataError: a file is missing, is no UTF-8 or not aligned, or the bucket has no pair; names file and line.
    """
    paths = [folder / f"train.{language}" for language in languages]
    if mode == "inference":
        texts = [read_sentences(path, limit) for path in (paths[0], folder / f"test.{languages[0]}")]
        numbers = number_words(texts[0], shape.vocabulary)
        pairs = [(_numbered(words, numbers), list[int]()) for words in texts[1] if words]
        origin = str(folder / f"test.{languages[0]}")
    else:
        texts = [read_sentences(path, limit) for path in paths]
        if len(texts[0]) != len(texts[1]):
            raise DataError(
                f"{paths[1]}: expected a translation of each line of {paths[0].name}: {len(texts[0])} lines, found {len(texts[1])}"
            )
        source_numbers, target_numbers = (number_words(text, shape.vocabulary) for text in texts)
        both = zip(*texts, strict=True)
        pairs = [(_numbered(s, source_numbers), _numbered(t, target_numbers)) for s, t in both if s and t]
        origin = f"{paths[0]} and {paths[1].name}"
    return _draw(_in_bucket(pairs, shape.bucket, origin), shape, mode, batch_size, seed)


def read_sentences(path: Path, limit: int = 0) -> list[list[str]]:
    """The words of each line, of the first `limit` lines or of all.

    Raises:
        DataError: the file is missing, or a line is not UTF-8.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected text with one sentence a line")
    found = []
    with path.open("rb") as file:
        for row, line in enumerate(islice(file, limit or None), start=1):
            try:
                found.append(tokenize(line.decode("utf-8")))
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: line {row}: expected UTF-8 text, found byte 0x{line[error.start]:02x}") from None
    return found


def _numbered(words: Sequence[str], numbers: dict[str, int]) -> list[int]:
    return [numbers.get(word, UNK) for word in words]


def _in_bucket(pairs: Sequence[tuple[Words, Words]], bucket: int, origin: str) -> list[tuple[Words, Words]]:
    places = [bucket_of(len(source), len(target)) for source, target in pairs]
    found = [pair for pair, place in zip(pairs, places, strict=True) if place == bucket]
    if not found:
        counts = ", ".join(f"bucket {place} has {places.count(place)}" for place in range(len(BUCKETS)))
        raise DataError(
            f"{origin}: expected sentences for bucket {bucket}, found none: {counts}, {places.count(-1)} are too long for any"
        )
    return found


def _draw(pairs: Sequence[tuple[Words, Words]], shape: Shape, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    generator = np.random.default_rng(seed)
    place = 0
    while True:
        if mode == "training":
            chosen = generator.integers(len(pairs), size=batch_size)
        else:
            chosen = np.arange(place, place + batch_size) % len(pairs)
            place += batch_size
        yield pack([pairs[n] for n in chosen.tolist()], shape, mode)
