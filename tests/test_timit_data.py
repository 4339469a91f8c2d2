"""Does the TIMIT reader give the samples, phonemes and features of the files, and say what is wrong with one that is none?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import timit_files

from fathom_trace.data import timit
from fathom_trace.errors import DataError

PHONES = ["h#", "sh", "iy", "hv", "ae", "dcl", "h#"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two utterances to train on and one to test, in the corpus's own layout."""
    timit_files.write_utterance(tmp_path / "TIMIT/TRAIN/DR1/FCJF0/SA1", 4000, PHONES)
    timit_files.write_utterance(tmp_path / "TIMIT/TRAIN/DR2/MABC0/SX9", 3200, PHONES[:3])
    timit_files.write_utterance(tmp_path / "TIMIT/TEST/DR1/FAKS0/SA1", 2400, PHONES[:2])
    return tmp_path


def test_there_are_61_phonemes() -> None:
    assert len(timit.PHONEMES) == len(set(timit.PHONEMES)) == 61


def test_samples_are_read_in_either_byte_order(tmp_path: Path) -> None:
    samples = np.array([0, 1, -1, 32767, -32768, 258], np.int16)
    for order in ("01", "10"):
        path = tmp_path / f"{order}.wav"
        path.write_bytes(timit_files.sphere_bytes(samples, sample_byte_format=f"-s2 {order}"))
        assert timit.read_sphere(path).tolist() == samples.tolist()


def test_samples_are_those_that_soundfile_reads(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.wav"
    path.write_bytes(timit_files.sphere_bytes(timit_files.noise(500)))
    expected, rate = soundfile.read(path, dtype="int16")
    assert rate == 16_000
    assert timit.read_sphere(path).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sample_rate": "-i 8000"}, "expected sample_rate 16000 in the SPHERE header, found 8000"),
        ({"sample_rate": ""}, "expected sample_rate 16000 in the SPHERE header, found nothing"),
        ({"channel_count": "-i 2"}, "expected channel_count 1 in the SPHERE header, found 2"),
        ({"sample_n_bytes": "-i 1"}, "expected sample_n_bytes 2"),
        ({"sample_coding": "-s26 pcm,embedded-shorten-v2.00"}, "expected sample_coding pcm .* found pcm,embedded-shorten-v2.00"),
        ({"sample_byte_format": "-s1 1"}, "expected sample_byte_format 01 or 10, found 1"),
        ({"sample_count": "-i 101"}, "the header promises 101 samples, found 100"),
        ({"sample_count": ""}, "the header promises no number of samples"),
    ],
)
def test_a_sphere_file_of_another_kind_is_refused(tmp_path: Path, fields: dict[str, str], problem: str) -> None:
    path = tmp_path / "SA1.WAV"
    path.write_bytes(timit_files.sphere_bytes(timit_files.noise(100), **fields))
    with pytest.raises(DataError, match=rf"SA1\.WAV: {problem}"):
        timit.read_sphere(path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"RIFF\x24\x08\x00\x00WAVEfmt ", "expected a NIST SPHERE file, which begins with NIST_1A, found a RIFF file"),
        (b"", "expected a NIST SPHERE file"),
        (b"NIST_1A\nwhat?\n", "expected the size of the SPHERE header"),
        (b"NIST_1A\n   1024\nsample_rate -i 16000\n", "expected the size of the SPHERE header in its second line, and as many bytes"),
    ],
)
def test_a_file_that_is_no_sphere_file_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "SA1.WAV"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"SA1\.WAV: {problem}"):
        timit.read_sphere(path)


def test_phonemes_become_labels_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "SA1.PHN"
    path.write_text("0 3050 h#\n3050 4559 sh\n4559 5723 b\n\n")
    assert timit.read_phonemes(path).tolist() == [60, timit.PHONEMES.index("sh"), 0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 3050 h#\n3050 4559 zz\n", "line 2: expected one of TIMIT's 61 phonemes, found 'zz'"),
        ("0 3050\n", "line 1: expected first sample, last sample, phoneme, found '0 3050'"),
        ("0 x h#\n", "line 1: expected first sample, last sample, phoneme"),
        ("50 10 h#\n", "line 1: expected first sample, last sample, phoneme"),
        ("\n", "expected at least one phoneme, found none"),
    ],
)
def test_a_phoneme_file_with_a_wrong_line_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "SA1.PHN"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"SA1\.PHN: {problem}"):
        timit.read_phonemes(path)


def test_frames_are_10_ms_every_5_ms() -> None:
    """n samples hold 1 + (n - 160) / 80 whole frames: 160 one, 239 still one, 240 two, a second (16,000) 199."""
    for samples, frames in ((160, 1), (239, 1), (240, 2), (16_000, 199)):
        assert timit.features(timit_files.noise(samples)).shape == (frames, 26)


def slow_features(samples: np.ndarray) -> np.ndarray:
    """The same 26 values, frame by frame and sum by sum, not normalised: a Fourier transform by its definition, filters by their
    formula, derivatives with the ends repeated."""

    def mel(frequency: float) -> float:
        return 2595 * np.log10(1 + frequency / 700)

    signal = samples.astype(np.float64)
    static = []
    for begin in range(0, len(signal) - 159, 80):
        frame = signal[begin : begin + 160]
        energy = np.log(sum(s * s for s in frame))
        emphasised = np.array([frame[n] - 0.97 * frame[max(n - 1, 0)] for n in range(160)])
        windowed = emphasised * (0.54 - 0.46 * np.cos(2 * np.pi * np.arange(160) / 159))
        power = [abs(sum(windowed * np.exp(-2j * np.pi * k * np.arange(160) / 512))) ** 2 for k in range(257)]
        logs = []
        for m in range(1, 27):
            low, centre, high = (mel(8000) * (m + d) / 27 for d in (-1, 0, 1))
            total = 0.0
            for k in range(257):
                place = mel(k * 16_000 / 512)
                if low < place <= centre:
                    total += power[k] * (place - low) / (centre - low)
                elif centre < place < high:
                    total += power[k] * (high - place) / (high - centre)
            logs.append(np.log(total))
        cepstra = [sum(logs[j] * np.cos(np.pi * i * (j + 0.5) / 26) for j in range(26)) for i in range(1, 13)]
        static.append([*cepstra, energy])
    count = len(static)
    slopes = []
    for t in range(count):
        at = [np.array(static[min(max(t + d, 0), count - 1)]) for d in (-2, -1, 0, 1, 2)]
        slopes.append((1 * (at[3] - at[1]) + 2 * (at[4] - at[0])) / (2 * (1 + 4)))
    return np.concatenate([np.array(static), np.array(slopes)], axis=1)


def test_features_equal_those_computed_by_their_definitions() -> None:
    samples = timit_files.noise(160 + 80 * 9, seed=1)
    slow = slow_features(samples)
    expected = (slow - slow.mean(axis=0)) / slow.std(axis=0)
    found = timit.features(samples)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_silence_gives_zeros() -> None:
    assert not timit.features(np.zeros(800, np.int16)).any()


def test_context_is_the_frames_to_both_sides() -> None:
    frames = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    expected = [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8], [5, 6, 7, 8, 0, 0]]
    assert timit.stack_context(frames, 1).tolist() == expected
    assert timit.stack_context(frames, 9).shape == (4, 38)


def test_a_label_repeated_needs_a_blank_between() -> None:
    assert timit.frames_needed(np.array([5, 5, 5, 2, 5], np.int32)) == 5 + 2


def test_training_and_test_utterances_are_told_by_their_folders(tree: Path) -> None:
    train = [u.audio.name for u in timit.utterances(tree, "training")]
    test = [u.audio.relative_to(tree).as_posix() for u in timit.utterances(tree, "inference")]
    assert (train, test) == (["SA1.WAV", "SX9.WAV"], ["TIMIT/TEST/DR1/FAKS0/SA1.WAV"])


def test_names_may_be_in_lower_case(tmp_path: Path) -> None:
    timit_files.write_utterance(tmp_path / "train/dr1/fcjf0/sa1", 1600, PHONES[:2], suffixes=(".wav", ".phn"))
    assert len(timit.utterances(tmp_path, "training")) == 1


def test_minibatches_hold_features_and_labels_with_their_lengths(tree: Path) -> None:
    batch = next(timit.read_batches(tree, 60, 8, 0, "training", 2, seed=0))
    assert {n: (v.shape, v.dtype.name) for n, v in batch.items()} == {
        "features": ((2, 60, 26), "float32"),
        "frame_length": ((2,), "int32"),
        "label": ((2, 8), "int32"),
        "label_length": ((2,), "int32"),
    }
    rows = {int(n): k for k, n in enumerate(batch["frame_length"])}
    assert sorted(rows) == [1 + (3200 - 160) // 80, 1 + (4000 - 160) // 80]
    long, short = rows[49], rows[39]
    assert batch["label"][long].tolist() == [timit.PHONEMES.index(p) for p in PHONES] + [0]
    assert batch["label_length"].tolist()[long] == 7
    assert batch["label_length"].tolist()[short] == 3
    np.testing.assert_array_equal(batch["features"][long, :49], timit.features(timit_files.noise(4000, seed=4000)))
    assert not batch["features"][long, 49:].any()


def test_context_does_not_reach_into_the_padding(tree: Path) -> None:
    batch = next(timit.read_batches(tree, 60, 8, 1, "inference", 1, seed=0))
    assert set(batch) == {"features", "frame_length"}
    assert batch["features"].shape == (1, 60, 78)
    read = timit.features(timit_files.noise(2400, seed=2400))
    np.testing.assert_array_equal(batch["features"][0, : len(read), 26:52], read)
    assert not batch["features"][0, len(read) :].any()


def test_training_takes_every_utterance_once_a_pass_by_the_seed(tree: Path) -> None:
    def order(seed: int) -> list[int]:
        batches = timit.read_batches(tree, 60, 8, 0, "training", 2, seed)
        return [int(n) for b in islice(batches, 12) for n in b["frame_length"]]

    found = order(1)
    assert all(sorted(found[k : k + 2]) == [39, 49] for k in range(0, 24, 2))
    assert {tuple(found[k : k + 2]) for k in range(0, 24, 2)} == {(39, 49), (49, 39)}
    assert order(1) == found


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((48, 8), r"SA1\.WAV: has 49 frames, but the model takes 48; pass --set frames=49"),
        ((60, 6), r"SA1\.PHN: has 7 phonemes, but the model takes 6; pass --set labels=7"),
    ],
)
def test_an_utterance_that_does_not_fit_says_what_to_set(tree: Path, sizes: tuple[int, int], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        next(timit.read_batches(tree, *sizes, 0, "training", 2, seed=0))


def test_labels_that_ctc_cannot_write_in_the_frames_are_refused(tmp_path: Path) -> None:
    """240 samples are 2 frames; two labels that are alike need 3."""
    timit_files.write_utterance(tmp_path / "TRAIN/A/B/SA1", 240, ["b", "b"])
    with pytest.raises(DataError, match=r"SA1\.PHN: expected phonemes that 2 frames of audio can hold, found 2, which need 3"):
        next(timit.read_batches(tmp_path, 10, 8, 0, "training", 1, seed=0))
    timit_files.write_utterance(tmp_path / "TRAIN/A/B/SA1", 159, ["b"])
    with pytest.raises(DataError, match=r"SA1\.WAV: expected at least the 160 samples of a frame, found 159"):
        next(timit.read_batches(tmp_path, 10, 8, 0, "training", 1, seed=0))


def test_a_tree_without_utterances_is_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        timit.read_batches(tmp_path / "absent", 60, 8, 0, "training", 1, seed=0)
    with pytest.raises(DataError, match=r"holds no \.PHN file below a folder TEST, which inference reads"):
        timit.read_batches(tree / "TIMIT" / "TRAIN", 60, 8, 0, "inference", 1, seed=0)
    (tree / "TIMIT/TRAIN/DR1/FCJF0/SA1.WAV").unlink()
    with pytest.raises(DataError, match=r"SA1\.PHN: expected a \.WAV file of the same name beside it, found none"):
        timit.read_batches(tree, 60, 8, 0, "training", 1, seed=0)
