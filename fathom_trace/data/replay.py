"""Replay memory of a deep Q network: single frames in, minibatches of stacked frames out; and a made-up game to fill it with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom_trace.workload import Values

STACK = 4
"""Frames of a state."""

_BLOCK_FRAMES = 1024


@dataclass(frozen=True)
class Transition:
    """One action: the frame [height, width] uint8 that it was chosen on, the sign of its reward, and whether it ended the episode."""

    frame: NDArray[np.uint8]
    action: int
    reward: float
    is_terminal: bool


class ReplayMemory:
    """The last `capacity` transitions. Memory for frames is taken as they arrive, a block of 1024 at a time."""

    def __init__(self, capacity: int, height: int, width: int) -> None:
        self.capacity, self.height, self.width = capacity, height, width
        self._blocks: list[NDArray[np.uint8]] = []
        self._action = np.zeros(capacity, np.int32)
        self._reward = np.zeros(capacity, np.float32)
        self._terminal = np.zeros(capacity, bool)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    @property
    def frame_bytes(self) -> int:
        """Bytes taken for frames so far."""
        return sum(block.nbytes for block in self._blocks)

    def add(self, transition: Transition) -> None:
        """Keep a transition, in the place of the oldest where the memory is full."""
        row = self._added % self.capacity
        if row // _BLOCK_FRAMES == len(self._blocks):
            self._blocks.append(np.zeros((min(_BLOCK_FRAMES, self.capacity), self.height, self.width), np.uint8))
        self._blocks[row // _BLOCK_FRAMES][row % _BLOCK_FRAMES] = transition.frame
        self._action[row] = transition.action
        self._reward[row] = transition.reward
        self._terminal[row] = transition.is_terminal
        self._added += 1

    def state(self, time: int) -> NDArray[np.float32]:
        """The state that transition number `time` (counted from the first ever added) was chosen on, [height, width, 4] in [0, 1].

        Its last frame is that of the transition itself; frames of the episode before are black, as at the start of a game.
        """
        stacked = np.zeros((self.height, self.width, STACK), np.float32)
        for back in range(STACK):
            if time - back < 0 or (back and self._terminal[(time - back) % self.capacity]):
                break
            row = (time - back) % self.capacity
            stacked[:, :, STACK - 1 - back] = self._blocks[row // _BLOCK_FRAMES][row % _BLOCK_FRAMES]
        return stacked / np.float32(255)

    def sample(self, batch_size: int, generator: np.random.Generator) -> Values:
        """`state`, `next_state` [batch, height, width, 4], `action`, `reward`, `terminal` [batch] of transitions drawn uniformly.

        Drawn from all whose own frames and next frame are still held; at least five must have been added.
        """
        oldest = self._added - len(self)
        times = generator.integers(oldest + STACK - 1, self._added - 1, batch_size)
        rows = times % self.capacity
        return {
            "state": np.stack([self.state(t) for t in times.tolist()]),
            "action": self._action[rows],
            "reward": self._reward[rows],
            "next_state": np.stack([self.state(t + 1) for t in times.tolist()]),
            "terminal": self._terminal[rows].astype(np.float32),
        }


def replay_batches(
    play: Iterator[Transition], memory: ReplayMemory, start: int, interval: int, batch_size: int, generator: np.random.Generator
) -> Iterator[Values]:
    """Minibatches without end: the first after `start` transitions, `interval` more before each of the others."""
    for _ in range(start):
        memory.add(next(play))
    while True:
        yield memory.sample(batch_size, generator)
        for _ in range(interval):
            memory.add(next(play))


def latest_states(play: Iterator[Transition], height: int, width: int, batch_size: int) -> Iterator[Values]:
    """`state` [batch, height, width, 4]: those of the next `batch_size` actions, without end."""
    memory = ReplayMemory(batch_size + STACK, height, width)
    time = -1
    while True:
        for _ in range(batch_size):
            memory.add(next(play))
        time += batch_size
        yield {"state": np.stack([memory.state(t) for t in range(time - batch_size + 1, time + 1)])}


_REWARD_SHARE, _END_SHARE = 0.01, 0.002
_BRICK_ROWS = 6
_DRAWN = 1024
"""Actions and chances are drawn so many at a time, for speed."""


def made_up_play(height: int, width: int, actions: int, seed: int) -> Iterator[Transition]:
    """A picture like that of an Atari game, without end: rows of grey bricks, a ball that bounces, a paddle that the action moves.

    Frames are mostly black and differ little from one to the next. Rewards are rare (1% of actions), episodes end after 500 actions on
    average. No rule ties a reward to an action.
    """
    generator = np.random.default_rng(seed)
    background = np.zeros((height, width), np.uint8)
    thickness = max(1, height // 28)
    for row in range(_BRICK_ROWS):
        top = height // 4 + row * thickness
        background[top : top + thickness] = 90 + 20 * row
    side, paddle = max(1, height // 42), max(2, width // 8)
    row, column, down, right = height // 2, width // 2, side, side
    at = width // 2
    while True:
        drawn = zip(generator.integers(actions, size=_DRAWN).tolist(), generator.random(_DRAWN).tolist(), strict=True)
        for action, chance in drawn:
            frame = background.copy()
            frame[row : row + side, column : column + side] = 200
            frame[-thickness:, at : at + paddle] = 150
            is_over = chance < _END_SHARE
            yield Transition(frame, action, float(chance > 1 - _REWARD_SHARE), is_over)
            at = min(max(at + (action % 3 - 1) * side, 0), width - paddle)
            down = down if 0 <= row + down <= height - side else -down
            right = right if 0 <= column + right <= width - side else -right
            row, column = (height // 2, int(generator.integers(width - side))) if is_over else (row + down, column + right)
