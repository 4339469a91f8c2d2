"""Atari games through the Arcade Learning Environment (`ale-py`), played at random: frames, rewards and ends of episodes.

`ale-py` is under the GPL and not a dependency: it is imported only when a game is asked for, and brings the ROMs of its games.

As in the paper's methods section (Mnih et al. 2015, "Preprocessing" and "Training details"): an action is repeated for some frames
and its rewards are added and reduced to their sign; a frame is the brighter of the last two at each pixel, for the console draws
some objects in every other frame only; it is reduced to luminance and to a smaller size; an episode ends with a life, the game is
begun anew when it is over, with up to 30 idle frames. Nothing is random but the actions and the idle frames: the emulator's own seed
is fixed and it repeats no action by chance.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.data.replay import Transition
from fathom_trace.errors import DataError, UnknownNameError

FORMAT = (
    "Atari 2600 ROMs by the names that ale-py gives them (breakout.bin); needs ale-py: pip install 'fathom-trace[atari]'."
    " Without a folder, --set game=NAME plays the ROM that ale-py brings"
)

_EMULATOR_SEED = 123
_IDLE_FRAMES = 30
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Of red, green and blue: ITU-R BT.601."""


def find_rom(folder: Path, game: str | None) -> Path:
    """The ROM of `game` in a folder, or the only one there.

    Raises:
        DataError: there is none, or none was asked for and there are several.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds Atari ROMs such as breakout.bin")
    found = sorted(folder.glob("*.bin"))
    if game is not None:
        found = [path for path in found if path.stem == game]
        if not found:
            raise DataError(f"{folder} holds no {game}.bin")
    if not found:
        raise DataError(f"{folder} holds no Atari ROM; a file such as breakout.bin was expected")
    if len(found) > 1:
        raise DataError(f"{folder} holds several ROMs ({', '.join(p.stem for p in found)}); choose one with --set game=NAME")
    return found[0]


def own_rom(game: str) -> Path:
    """The ROM of `game` that `ale-py` brings.

    Raises:
        DataError: `ale-py` is not installed.
        UnknownNameError: it brings no such game.
    """
    folder = Path(_ale().roms.__file__).parent
    path = folder / f"{game}.bin"
    if not path.is_file():
        raise UnknownNameError("Atari game", game, (p.stem for p in folder.glob("*.bin")))
    return path


class Game:
    """A game that can be played. `actions` is the number of those that do something in it (its minimal action set)."""

    def __init__(self, rom: Path, height: int, width: int, action_repeat: int) -> None:
        """Load a ROM.

        Raises:
            DataError: `ale-py` is not installed, or `rom` is not the ROM of the game whose name it has.
        """
        ale = _ale()
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
        # Asked first, because the emulator ends the process on a file that it cannot read.
        found = ale.ALEInterface.isSupportedROM(rom) if rom.is_file() else None
        if found != rom.stem:
            is_what = f"that of '{found}'" if found else "no ROM that it knows"
            raise DataError(f"{rom}: ale-py expects the ROM of '{rom.stem}' by its checksum, but the file is {is_what}")
        self._emulator = ale.ALEInterface()
        self._emulator.setInt("random_seed", _EMULATOR_SEED)
        self._emulator.setInt("frame_skip", 1)
        self._emulator.setFloat("repeat_action_probability", 0.0)
        self._emulator.loadROM(rom)
        self._actions = self._emulator.getMinimalActionSet()
        self.actions = len(self._actions)
        self.name = rom.stem
        self._size, self._repeat = (height, width), action_repeat

    def play(self, generator: np.random.Generator) -> Iterator[Transition]:
        """Uniformly random actions, without end: what the agent does while its epsilon is 1."""
        while True:
            frame = self._begin(generator)
            while not self._emulator.game_over():
                action = int(generator.integers(self.actions))
                lives = self._emulator.lives()
                following, reward = self._act(action)
                is_over = self._emulator.game_over() or self._emulator.lives() < lives
                yield Transition(frame, action, float(np.sign(reward)), is_over)
                frame = following

    def _begin(self, generator: np.random.Generator) -> NDArray[np.uint8]:
        self._emulator.reset_game()
        for _ in range(int(generator.integers(_IDLE_FRAMES + 1))):
            self._emulator.act(0)
        return prepare(self._emulator.getScreenRGB(), *self._size)

    def _act(self, action: int) -> tuple[NDArray[np.uint8], int]:
        reward = 0
        before = None
        for repeated in range(self._repeat):
            if repeated == self._repeat - 1 and repeated:
                before = self._emulator.getScreenRGB()
            reward += self._emulator.act(self._actions[action])
        screen = self._emulator.getScreenRGB()
        return prepare(screen if before is None else np.maximum(screen, before), *self._size), reward


def prepare(screen: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """The luminance of a screen [rows, columns, 3], resized bilinearly to [height, width].

    A pixel's centre at (i + 1/2) of `height` lies at (i + 1/2) x rows / `height` of the screen, between two rows.
    """
    grey = screen.astype(np.float32) @ _LUMINANCE
    upper, lower, share = _between(grey.shape[0], height)
    rows = grey[upper] * (1 - share)[:, None] + grey[lower] * share[:, None]
    left, right, share = _between(grey.shape[1], width)
    return np.rint(rows[:, left] * (1 - share) + rows[:, right] * share).astype(np.uint8)


def _between(size: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each wanted place, the two places that it lies between and the share of the second."""
    place = np.clip((np.arange(wanted) + 0.5) * size / wanted - 0.5, 0, size - 1)
    first = np.floor(place).astype(np.int64)
    return first, np.minimum(first + 1, size - 1), (place - first).astype(np.float32)


def _ale() -> Any:
    """The `ale_py` module.

    Raises:
        DataError: it is not installed.
    """
    try:
        module = importlib.import_module("ale_py")
        importlib.import_module("ale_py.roms")
    except ModuleNotFoundError:
        raise DataError("an Atari game is played with ale-py, which is not installed: pip install 'fathom-trace[atari]'") from None
    return module
