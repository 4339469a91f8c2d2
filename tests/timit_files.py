"""Writes files in TIMIT's formats, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def sphere_bytes(samples: np.ndarray, **fields: str) -> bytes:
    """A NIST SPHERE file as the corpus has it: a header of 1024 bytes in text, then 16-bit samples; `fields` change the header."""
    values = {
        "database_id": "-s5 TIMIT", "database_version": "-s3 1.0", "utterance_id": "-s8 aks0_sa1", "channel_count": "-i 1",
        "sample_count": f"-i {len(samples)}", "sample_rate": "-i 16000", "sample_min": f"-i {samples.min()}",
        "sample_max": f"-i {samples.max()}", "sample_n_bytes": "-i 2", "sample_byte_format": "-s2 01", "sample_sig_bits": "-i 16",
    } | fields  # fmt: skip
    lines = [f"{name} {value}" for name, value in values.items() if value]
    header = "\n".join(["NIST_1A", "   1024", *lines, "end_head", ""]).encode()
    order = ">i2" if "10" in values["sample_byte_format"] else "<i2"
    return header.ljust(1024) + samples.astype(order).tobytes()


def phoneme_text(phonemes: Sequence[str], samples: int) -> str:
    """Lines of a .PHN file that share the samples evenly."""
    edges = np.linspace(0, samples, len(phonemes) + 1).astype(int)
    return "".join(f"{edges[k]} {edges[k + 1]} {phoneme}\n" for k, phoneme in enumerate(phonemes))


def noise(samples: int, seed: int = 0) -> np.ndarray:
    """Samples of 16 bits."""
    return np.random.default_rng(seed).normal(0, 1000, samples).astype(np.int16)


def write_utterance(stem: Path, samples: int, phonemes: Sequence[str], suffixes: tuple[str, str] = (".WAV", ".PHN")) -> None:
    """The two files of an utterance of noise."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(suffixes[0]).write_bytes(sphere_bytes(noise(samples, seed=samples)))
    stem.with_suffix(suffixes[1]).write_text(phoneme_text(phonemes, samples))
