"""CRC-32C (Castagnoli), the checksum of TFRecord files: RFC 3720, appendix B.4; reflected polynomial 0x82f63b78.

The register is linear over GF(2), so blocks of a long message are run side by side as a numpy axis and then joined: a register that
passes a whole block is moved by the block's length in zero bytes and xored with the block's own checksum from a zero register.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_BLOCK = 128


def crc32c(data: bytes) -> int:
    """The CRC-32C of `data`; of `b"123456789"` it is 0xe3069283."""
    table = _byte_table()
    register = _ONES
    blocks = len(data) // _BLOCK
    if blocks:
        columns = np.frombuffer(data, np.uint8, blocks * _BLOCK).reshape(blocks, _BLOCK).T
        moves = _block_moves()
        for own in _run(np.zeros(blocks, np.uint32), np.ascontiguousarray(columns)).tolist():
            moved = (
                moves[0][register & 255] ^ moves[1][register >> 8 & 255] ^ moves[2][register >> 16 & 255] ^ moves[3][register >> 24]
            )
            register = moved ^ own
    for byte in data[blocks * _BLOCK :]:
        register = table[(register ^ byte) & 255] ^ register >> 8
    return register ^ _ONES


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it: rotated right by 15 bits plus 0xa282ead8, so that a checksum of checksums stays sound."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ONES


@functools.cache
def _byte_table() -> list[int]:
    """What a register whose low byte is the index, and else zero, becomes after one zero byte."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


@functools.cache
def _block_moves() -> list[list[int]]:
    """For each of the register's four bytes and each of its values: what a whole block of zero bytes makes of it."""
    start = (np.arange(256, dtype=np.uint32)[None, :] << np.arange(0, 32, 8, dtype=np.uint32)[:, None]).reshape(-1)
    moved = _run(start, np.zeros((_BLOCK, 1), np.uint8))
    rows: list[list[int]] = moved.reshape(4, 256).tolist()
    return rows


def _run(registers: NDArray[np.uint32], columns: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The registers after their messages; row i of `columns` ([length, messages]) holds byte i of each message."""
    table = np.array(_byte_table(), np.uint32)
    for column in columns:
        registers = table[(registers ^ column) & 255] ^ registers >> 8
    return registers
