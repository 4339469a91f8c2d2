"""Does the reader of parallel text cut, number, bucket, pad and reverse as specified, and say what is wrong with a wrong file?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fathom_trace.data import parallel_text
from fathom_trace.data.parallel_text import EOS, GO, PAD, UNK, Shape
from fathom_trace.errors import DataError
from fathom_trace.workload import Values

ENGLISH = "the cat sleeps\nthe dog , the cat .\n\nthe bird sings often here in 1999 and in 2016 again and again\n"
FRENCH = "le chat dort\nle chien , le chat .\nvide\nl'oiseau chante\n"
SMALL, SECOND = Shape(vocabulary=100, bucket=0), Shape(vocabulary=100, bucket=1)


def folder(path: Path, english: str = ENGLISH, french: str = FRENCH, test: str = "the dog flies\n") -> Path:
    (path / "train.en").write_text(english, encoding="utf-8")
    (path / "train.fr").write_text(french, encoding="utf-8")
    (path / "test.en").write_text(test, encoding="utf-8")
    return path


def first(path: Path, shape: Shape, mode: str, batch_size: int = 1, limit: int = 0) -> Values:
    return next(parallel_text.read_batches(path, ("en", "fr"), limit, shape, mode, batch_size, seed=0))


def test_sentences_are_cut_at_blanks_and_marks_and_digits_become_0() -> None:
    assert parallel_text.tokenize('  "No," said 42-year-old\tÉmile: (why?)\n') == [
        *('"', "No", ",", '"', "said", "00-year-old", "Émile", ":", "(", "why", "?", ")"),
    ]
    assert parallel_text.tokenize("\n") == []


def test_words_are_numbered_by_frequency_and_ties_by_appearance() -> None:
    """b 3, c 2, a 2, d 1: numbers 4, 5 (c came before a), 6, 7."""
    sentences = [["b", "c", "a"], ["b", "a", "c", "d", "b"]]
    assert parallel_text.number_words(sentences, 100) == {"b": 4, "c": 5, "a": 6, "d": 7}
    assert parallel_text.number_words(sentences, 6) == {"b": 4, "c": 5}


@pytest.mark.parametrize(
    ("source", "target", "bucket"),
    [
        (4, 8, 0),  # 4 < 5, and 8 with EOS 9 < 10
        (5, 8, 1),
        (4, 9, 1),  # with EOS 10, not below 10
        (19, 23, 2),
        (20, 23, 3),
        (39, 48, 3),
        (40, 1, -1),
        (1, 49, -1),
    ],
)
def test_a_pair_goes_to_the_first_bucket_that_holds_it(source: int, target: int, bucket: int) -> None:
    assert parallel_text.bucket_of(source, target) == bucket


def test_padding_reversal_targets_and_weights() -> None:
    """Source 7 8 of 5 steps: 7 8 PAD PAD PAD, reversed. The decoder reads GO 5 6 EOS PAD ..., predicts what it reads next."""
    values = parallel_text.pack([([7, 8], [5, 6]), ([9], list(range(11, 19)))], SMALL, "training")
    assert values["source"].T.tolist() == [[PAD, PAD, PAD, 8, 7], [PAD, PAD, PAD, PAD, 9]]
    assert values["decoder_input"].T.tolist() == [[GO, 5, 6, EOS, *[PAD] * 6], [GO, *range(11, 19), EOS]]
    assert values["target"].T.tolist() == [[5, 6, EOS, *[PAD] * 7], [*range(11, 19), EOS, PAD]]
    assert values["weight"].T.tolist() == [[1, 1, 1, *[0] * 7], [*[1] * 9, 0]]
    specs = {s.name: s for s in parallel_text.input_specs(SMALL, "training", 2)}
    assert {n: (v.shape, v.dtype) for n, v in values.items()} == {n: (s.shape, np.dtype(s.dtype)) for n, s in specs.items()}
    inference = parallel_text.pack([([7, 8], [])], SMALL, "inference")
    assert {name: v.tolist() for name, v in inference.items()} == {"source": [[PAD], [PAD], [PAD], [8], [7]], "start": [GO]}


def test_training_reads_pairs_of_the_bucket(tmp_path: Path) -> None:
    """Bucket 0 holds only the first pair: the second has 6 source words, the third no source.

    English counts: the 4, cat 2, in 2, and 2, again 2, 0000 2; so the is 4 and cat 5. Sleeps is the first that occurs once: 10.
    French: le 3, chat 2, then dort first of the single ones.
    """
    values = first(folder(tmp_path), SMALL, "training", batch_size=2)
    assert values["source"].T.tolist() == [[PAD, PAD, 10, 5, 4]] * 2
    assert values["decoder_input"].T.tolist() == [[GO, 4, 5, 6, EOS, *[PAD] * 5]] * 2
    second = first(tmp_path, SECOND, "training")
    assert np.count_nonzero(second["source"]) == 6
    assert np.count_nonzero(second["weight"]) == 7


def test_a_rare_word_is_unknown(tmp_path: Path) -> None:
    values = first(folder(tmp_path), Shape(vocabulary=6, bucket=0), "training")
    assert values["source"].T.tolist() == [[PAD, PAD, UNK, 5, 4]]


def test_inference_reads_sources_of_the_test_text(tmp_path: Path) -> None:
    """`dog` is the second of the words that occur once in the training text, `flies` is unknown."""
    path = folder(tmp_path, test="the dog flies\n\nthe the the the the the\nthe\n")
    (path / "train.fr").unlink()
    values = first(path, SMALL, "inference", batch_size=3)
    assert values["source"].T.tolist() == [[PAD, PAD, UNK, 11, 4], [PAD, PAD, PAD, PAD, 4], [PAD, PAD, UNK, 11, 4]]
    assert values["start"].tolist() == [GO] * 3


def test_only_so_many_lines_are_read(tmp_path: Path) -> None:
    path = folder(tmp_path, ENGLISH + "a line more\n")
    assert first(path, SMALL, "training", limit=4)["source"].T.tolist() == [[PAD, PAD, 10, 5, 4]]


def test_texts_that_are_not_aligned_are_told(tmp_path: Path) -> None:
    folder(tmp_path, french="un\ndeux\n")
    with pytest.raises(DataError, match=r"train\.fr: expected a translation of each line of train\.en: 4 lines, found 2$"):
        first(tmp_path, SMALL, "training")


def test_text_that_is_not_utf8_is_told_by_line(tmp_path: Path) -> None:
    (folder(tmp_path) / "train.fr").write_bytes(b"le\nl'\xe9t\xe9\n")
    with pytest.raises(DataError, match=r"train\.fr: line 2: expected UTF-8 text, found byte 0xe9$"):
        first(tmp_path, SMALL, "training")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.en does not exist; expected text with one sentence a line"):
        first(tmp_path, SMALL, "training")


def test_an_empty_bucket_is_told(tmp_path: Path) -> None:
    message = (
        "expected sentences for bucket 3, found none: bucket 0 has 1, bucket 1 has 1, bucket 2 has 1, bucket 3 has 0, 0 are too long"
    )
    with pytest.raises(DataError, match=message):
        first(folder(tmp_path), Shape(100, 3), "training")


@pytest.mark.parametrize("bucket", range(4))
def test_synthetic_pairs_belong_to_the_bucket(bucket: int) -> None:
    shape = Shape(vocabulary=1000, bucket=bucket)
    values = next(parallel_text.synthetic_batches(shape, "training", 64, seed=1))
    sources = np.count_nonzero(values["source"], axis=0)
    targets = values["weight"].sum(0).astype(int) - 1  # EOS counts
    assert {parallel_text.bucket_of(s, t) for s, t in zip(sources.tolist(), targets.tolist(), strict=True)} == {bucket}
    assert len(set(sources.tolist())) > 1
    again = next(parallel_text.synthetic_batches(shape, "training", 64, seed=1))
    assert all(np.array_equal(values[name], again[name]) for name in values)


def test_synthetic_words_follow_zipf() -> None:
    """P(rank r) = log((r + 2) / (r + 1)) / log(n + 1) for n = 996 words; 20,000 draws, 5 standard deviations."""
    batches = islice(parallel_text.synthetic_batches(Shape(1000, 3), "inference", 64, seed=0), 12)
    words = np.concatenate([b["source"][b["source"] != PAD] for b in batches])
    assert len(words) > 15_000
    assert words.min() == parallel_text.SPECIAL
    assert words.max() < 1000
    for rank in (0, 1, 9):
        share = np.log((rank + 2) / (rank + 1)) / np.log(997)
        deviation = np.sqrt(share * (1 - share) / len(words))
        assert abs(np.mean(words == parallel_text.SPECIAL + rank) - share) < 5 * deviation
