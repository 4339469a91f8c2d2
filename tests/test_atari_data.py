"""Do the replay memory and the Atari player give states, rewards and ends as the papers define them?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from fathom_trace.data import atari
from fathom_trace.data.replay import ReplayMemory, Transition, latest_states, made_up_play, replay_batches
from fathom_trace.errors import DataError, UnknownNameError

ROM = "breakout"


def numbered(count: int, ends: tuple[int, ...] = ()) -> Iterator[Transition]:
    """Transitions whose frame k is filled with k, whose action is k and whose reward is -k."""
    for k in range(count):
        yield Transition(np.full((2, 3), k % 256, np.uint8), k, -float(k), k in ends)


def memory_of(count: int, capacity: int, ends: tuple[int, ...] = ()) -> ReplayMemory:
    memory = ReplayMemory(capacity, 2, 3)
    for transition in numbered(count, ends):
        memory.add(transition)
    return memory


def stacked(state: np.ndarray) -> list[int]:
    """The numbers of the frames in a state; 0 where it is black."""
    assert np.all(state == state[0, 0])
    return np.rint(state[0, 0] * 255).astype(int).tolist()


def test_a_state_is_the_last_four_frames_oldest_first() -> None:
    assert stacked(memory_of(10, 100).state(6)) == [3, 4, 5, 6]


def test_a_state_does_not_look_into_the_episode_before() -> None:
    """Transition 4 ends an episode: 5 and 6 are the first frames of the next, and 4 itself is still of its own."""
    memory = memory_of(10, 100, ends=(4,))
    assert stacked(memory.state(4)) == [1, 2, 3, 4]
    assert stacked(memory.state(5)) == [0, 0, 0, 5]
    assert stacked(memory.state(6)) == [0, 0, 5, 6]
    assert stacked(memory.state(8)) == [5, 6, 7, 8]


def test_a_full_memory_forgets_the_oldest() -> None:
    memory = memory_of(25, 10)
    assert len(memory) == 10
    seen = {int(a) for _ in range(40) for a in memory.sample(8, np.random.default_rng(_))["action"]}
    # Held are 15 to 24. 15 to 17 lack earlier frames, 24 lacks a next one.
    assert seen == set(range(18, 24))


def test_a_sample_belongs_together() -> None:
    ends = tuple(range(5, 2000, 7))
    memory = memory_of(2000, 1500, ends)
    batch = memory.sample(64, np.random.default_rng(0))
    for k in range(64):
        number = int(batch["action"][k])
        assert batch["reward"][k] == -number
        assert batch["terminal"][k] == (number in ends)
        assert stacked(batch["state"][k])[-1] == number % 256
        assert stacked(batch["next_state"][k])[-1] == (number + 1) % 256
        if number not in ends:
            assert stacked(batch["next_state"][k])[:-1] == stacked(batch["state"][k])[1:]
    dtypes = {name: value.dtype.name for name, value in batch.items()}
    assert dtypes == {"state": "float32", "action": "int32", "reward": "float32", "next_state": "float32", "terminal": "float32"}


def test_memory_for_frames_is_taken_as_they_arrive() -> None:
    """A million frames of 84 x 84 would be 7 GB; 1025 frames take two blocks of 1024."""
    memory = ReplayMemory(1_000_000, 84, 84)
    assert memory.frame_bytes == 0
    frame = np.zeros((84, 84), np.uint8)
    for _ in range(1025):
        memory.add(Transition(frame, 0, 0.0, False))
    assert memory.frame_bytes == 2 * 1024 * 84 * 84


def test_batches_start_late_and_the_game_goes_on_between_them() -> None:
    memory = ReplayMemory(100, 2, 3)
    batches = replay_batches(numbered(100), memory, start=20, interval=4, batch_size=2, generator=np.random.default_rng(0))
    sizes = []
    for _ in range(3):
        next(batches)
        sizes.append(len(memory))
    assert sizes == [20, 24, 28]


def test_states_for_inference_follow_one_another() -> None:
    batches = list(islice(latest_states(numbered(30), 2, 3, batch_size=3), 3))
    assert [stacked(s) for b in batches for s in b["state"]][:6] == [
        [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5],
    ]  # fmt: skip


def test_the_made_up_game_looks_like_one() -> None:
    play = list(islice(made_up_play(84, 84, 4, seed=0), 5000))
    frames = np.stack([t.frame for t in play])
    assert frames.dtype == np.uint8
    changed = np.mean(frames[1:] != frames[:-1])
    assert 0 < changed < 0.01, "little changes between two frames"
    assert np.mean(frames == 0) > 0.5, "most of the picture is black"
    assert {t.action for t in play} == {0, 1, 2, 3}
    # 5000 draws with 1% and 0.2%: 50 and 10, with deviations of 7 and 3.2.
    assert 20 < sum(t.reward for t in play) < 85
    assert 1 <= sum(t.is_terminal for t in play) < 26
    again = list(islice(made_up_play(84, 84, 4, seed=0), 5000))
    assert all(np.array_equal(a.frame, b.frame) and a.action == b.action for a, b in zip(play, again, strict=True))


def test_a_frame_is_the_luminance_resized_bilinearly() -> None:
    """2 x 4 grey pixels to 1 x 2: each new pixel's centre lies between four old ones, so it is their mean.

    Grey is (0.299 r + 0.587 g + 0.114 b); the screen has r = g = b but for one pixel.
    """
    grey = np.array([[10, 20, 30, 40], [50, 60, 70, 80]], np.uint8)
    screen = np.repeat(grey[:, :, None], 3, axis=2)
    assert atari.prepare(screen, 1, 2).tolist() == [[(10 + 20 + 50 + 60) // 4, (30 + 40 + 70 + 80) // 4]]
    assert atari.prepare(screen, 2, 4).tolist() == grey.tolist()
    screen[0, 0] = [200, 100, 50]
    assert atari.prepare(screen, 2, 4)[0, 0] == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)


def test_a_frame_of_real_size_equals_a_pixel_by_pixel_version() -> None:
    screen = np.random.default_rng(0).integers(0, 256, (210, 160, 3)).astype(np.uint8)
    grey = screen.astype(np.float64) @ [0.299, 0.587, 0.114]
    expected = np.zeros((84, 84))
    for i in range(84):
        for j in range(84):
            y, x = (i + 0.5) * 2.5 - 0.5, (j + 0.5) * 160 / 84 - 0.5
            top, left = int(y), int(x)
            v, u = y - top, x - left
            expected[i, j] = (
                grey[top, left] * (1 - v) * (1 - u)
                + grey[top + 1, left] * v * (1 - u)
                + grey[top, left + 1] * (1 - v) * u
                + grey[top + 1, left + 1] * v * u
            )
    assert np.abs(atari.prepare(screen, 84, 84) - expected).max() <= 0.51


class FakeEmulator:
    """Screens by number; a life is lost at every 10th act, the game is over at the 20th, act k gives reward k % 3 - 1."""

    def __init__(self) -> None:
        self.settings: dict[str, float] = {}
        self.acts: list[int] = []
        self.begin()

    def begin(self) -> None:
        self.count = 0

    reset_game = begin

    def setInt(self, key: str, value: int) -> None:  # noqa: N802
        self.settings[key] = value

    setFloat = setInt  # noqa: N815

    def loadROM(self, rom: Path) -> None:  # noqa: N802
        self.rom = rom

    def getMinimalActionSet(self) -> list[int]:  # noqa: N802
        return [10, 11, 12]

    def getScreenRGB(self) -> np.ndarray:  # noqa: N802
        """The pixel at (0, k) is lit at act k only; the rest is dark."""
        screen = np.zeros((2, 40, 3), np.uint8)
        screen[:, self.count] = 255
        return screen

    def act(self, action: int) -> int:
        self.acts.append(action)
        self.count += 1
        return self.count % 3 - 1

    def lives(self) -> int:
        return 3 - self.count // 10

    def game_over(self) -> bool:
        return self.count >= 20


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEmulator:
    """`ale_py` replaced by a made-up one that knows the ROMs in `tmp_path` by their contents."""
    emulator = FakeEmulator()
    interface = SimpleNamespace(setLoggerMode=lambda mode: None, isSupportedROM=lambda rom: rom.read_text() or None)
    module, roms = ModuleType("ale_py"), ModuleType("ale_py.roms")

    class Interface:
        setLoggerMode = interface.setLoggerMode  # noqa: N815
        isSupportedROM = interface.isSupportedROM  # noqa: N815

        def __new__(cls) -> FakeEmulator:
            return emulator

    module.ALEInterface, module.LoggerMode, module.roms = Interface, SimpleNamespace(Error=2), roms
    roms.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "ale_py", module)
    monkeypatch.setitem(sys.modules, "ale_py.roms", roms)
    (tmp_path / "breakout.bin").write_text("breakout")
    return emulator


def idle_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "_IDLE_FRAMES", 0)


def test_an_action_lasts_four_frames_and_its_rewards_are_reduced_to_their_sign(
    fake: FakeEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards of acts 1 to 4 are 0, 1, -1, 0: sum 0; of 5 to 8 1, -1, 0, 1: sum 1; of 9 to 12 -1, 0, 1, -1: sum -1."""
    idle_free(monkeypatch)
    game = atari.Game(atari.own_rom(ROM), 2, 40, action_repeat=4)
    play = list(islice(game.play(np.random.default_rng(0)), 3))
    assert [t.reward for t in play] == [0, 1, -1]
    assert game.actions == 3
    chosen = [t.action for t in play]
    assert fake.acts[:12] == [[10, 11, 12][a] for a in chosen for _ in range(4)]
    assert fake.settings == {"random_seed": 123, "frame_skip": 1, "repeat_action_probability": 0.0}


def test_a_frame_is_the_brighter_of_the_last_two_screens(fake: FakeEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First is the game's first screen; after four acts 3 and 4 are lit, after eight 7 and 8. Not repeated: one screen."""
    idle_free(monkeypatch)
    frames = [t.frame for t in islice(atari.Game(atari.own_rom(ROM), 2, 40, 4).play(np.random.default_rng(0)), 3)]
    assert [np.flatnonzero(f[0]).tolist() for f in frames] == [[0], [3, 4], [7, 8]]
    fake.begin()
    frames = [t.frame for t in islice(atari.Game(atari.own_rom(ROM), 2, 40, 1).play(np.random.default_rng(0)), 3)]
    assert [np.flatnonzero(f[0]).tolist() for f in frames] == [[0], [1], [2]]


def test_an_episode_ends_with_a_life_and_the_game_begins_anew_when_it_is_over(
    fake: FakeEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two acts an action: a life is lost in the 5th action, the game is over after the 10th; the 11th sees screen 0 again."""
    idle_free(monkeypatch)
    play = list(islice(atari.Game(atari.own_rom(ROM), 2, 40, 2).play(np.random.default_rng(0)), 12))
    assert [k for k, t in enumerate(play) if t.is_terminal] == [4, 9]
    assert np.flatnonzero(play[10].frame[0]).tolist() == [0]


def test_a_file_that_is_not_the_rom_of_its_name_is_refused_before_it_is_loaded(fake: FakeEmulator, tmp_path: Path) -> None:
    (tmp_path / "seaquest.bin").write_text("breakout")
    with pytest.raises(DataError, match=r"seaquest\.bin: ale-py expects the ROM of 'seaquest' .*, but the file is that of 'breakout'"):
        atari.Game(tmp_path / "seaquest.bin", 2, 40, 4)
    (tmp_path / "pong.bin").write_text("")
    with pytest.raises(DataError, match="but the file is no ROM that it knows"):
        atari.Game(tmp_path / "pong.bin", 2, 40, 4)
    assert not hasattr(fake, "rom")


def test_a_rom_is_found_by_its_game_or_because_it_is_the_only_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no Atari ROM"):
        atari.find_rom(tmp_path, None)
    (tmp_path / "pong.bin").write_text("x")
    assert atari.find_rom(tmp_path, None).name == "pong.bin"
    (tmp_path / "breakout.bin").write_text("x")
    assert atari.find_rom(tmp_path, "breakout").name == "breakout.bin"
    with pytest.raises(DataError, match=r"holds several ROMs \(breakout, pong\); choose one with --set game=NAME"):
        atari.find_rom(tmp_path, None)
    with pytest.raises(DataError, match=r"holds no seaquest\.bin"):
        atari.find_rom(tmp_path, "seaquest")
    with pytest.raises(DataError, match="is not a folder"):
        atari.find_rom(tmp_path / "absent", None)


def test_an_unknown_game_offers_the_nearest(fake: FakeEmulator) -> None:
    with pytest.raises(UnknownNameError, match="no Atari game is called 'breakot'; did you mean 'breakout'"):
        atari.own_rom("breakot")


def test_without_ale_py_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(DataError, match=r"pip install 'fathom-trace\[atari\]'"):
        atari.own_rom(ROM)


@pytest.mark.parametrize(("game", "actions"), [("breakout", 4), ("space_invaders", 6), ("seaquest", 18)])
def test_real_games_are_played(game: str, actions: int) -> None:
    """Minimal action sets as published for the Arcade Learning Environment."""
    pytest.importorskip("ale_py")
    played = atari.Game(atari.own_rom(game), 84, 84, action_repeat=4)
    assert played.actions == actions
    play = list(islice(played.play(np.random.default_rng(0)), 300))
    frames = np.stack([t.frame for t in play])
    assert frames.shape == (300, 84, 84)
    assert frames.std() > 5, "there is a picture"
    assert np.any(frames[1:] != frames[:-1]), "and it moves"
    assert {t.reward for t in play} <= {-1, 0, 1}
    assert {t.action for t in play} == set(range(actions))


def test_a_real_emulator_refuses_a_foreign_file_with_an_error(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    (tmp_path / "breakout.bin").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(DataError, match="but the file is no ROM that it knows"):
        atari.Game(tmp_path / "breakout.bin", 84, 84, 4)
