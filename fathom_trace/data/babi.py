"""bAbI question answering: stories, questions and one-word answers as word numbers, from the real text files or made up.

The files are those of Weston et al., "Towards AI-Complete Question Answering: A Set of Prerequisite Toy Tasks", 2015, arXiv
1502.05698: for each task N of 1 to 20 `qa{N}_*_train.txt` and `qa{N}_*_test.txt`. A line is a number, a blank and text; number 1
begins a story. A sentence is plain text; a question has two tabs: question, answer, numbers of the supporting sentences.

    1 Mary moved to the bathroom.
    2 John went to the hallway.
    3 Where is Mary?<tab>bathroom<tab>1

Words are in lower case, without the mark at the end of a sentence. They are numbered from 1 by the alphabet, over both files of the
task; 0 is nil, which pads sentences to their width and stories to the size of the memory. An answer is one word, also where it is a
list (`apple,milk`). Of a story the most recent sentences that fit are kept, the latest first: place 0 holds the last sentence before
the question.

`synthetic_batches` makes stories as task 1 has them: 19 words, two sentences, then a question, five times a story.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fathom_trace.errors import DataError, OptionError
from fathom_trace.workload import InputSpec, Values

FORMAT = (
    "bAbI text files qa{N}_*_train.txt (training) and qa{N}_*_test.txt (inference), both needed: lines of a number and a sentence, or"
    " of a number, a question, a tab, its answer, a tab, supporting sentences; number 1 begins a story"
)
TASKS = 20
NIL = 0

NAMES = ("daniel", "john", "mary", "sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
MOVES = (("journeyed",), ("moved",), ("travelled",), ("went",), ("went", "back"))
SYNTHETIC_WORDS = tuple(sorted({*NAMES, *PLACES, *(w for m in MOVES for w in m), "is", "the", "to", "where"}))
SYNTHETIC_WIDTH = 6
"""Words of the longest synthetic sentence: `john went back to the garden`."""

_QUESTIONS_A_STORY, _SENTENCES_A_QUESTION = 5, 2
_NUMBER = re.compile(r"[0-9]{1,9}")
_TOKEN = re.compile(r"\w+|[^\w\s]")

Sentence = tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question, the sentences of its story before it (oldest first) and its answer. `origin` names file and line for messages."""

    story: tuple[Sentence, ...]
    question: Sentence
    answer: str
    origin: str = "synthetic"


@dataclass(frozen=True)
class Shape:
    """What the model takes: `words` it knows with nil, `memory` sentences, `width` words a sentence."""

    words: int
    memory: int
    width: int


def input_specs(shape: Shape, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """`story` [batch, memory, width] and `question` [batch, width]; in training also `answer` [batch]. All int32 word numbers."""
    last = shape.words - 1
    story = InputSpec(
        "story", (batch_size, shape.memory, shape.width), "int32", NIL, last, "input", "sentences, the latest first; 0 pads"
    )
    question = InputSpec("question", (batch_size, shape.width), "int32", NIL, last, "input", "words of the question; 0 pads")
    if mode == "inference":
        return (story, question)
    return (story, question, InputSpec("answer", (batch_size,), "int32", NIL + 1, last, "label", "the word that answers"))


def read_batches(folder: Path, task: int, shape: Shape, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches without end of one task: in training in a new seeded order each time round, in inference as they lie.

    Raises:
        DataError: a file is missing, is not in the format, or holds what does not fit into `shape`; names file and line.
    """
    texts = {part: read_questions(_file(folder, task, part)) for part in ("train", "test")}
    found = [q for questions in texts.values() for q in questions]
    numbers = number_words(found)
    if len(numbers) >= shape.words:
        raise DataError(
            f"{folder}: task {task} has {len(numbers)} words, which with nil are more than the model's {shape.words};"
            f" pass --set words={len(numbers) + 1}"
        )
    for question in found:
        longest = max(map(len, (question.question, *question.story)))
        if longest > shape.width:
            raise DataError(
                f"{question.origin}: expected sentences of at most {shape.width} words up to this question, found {longest};"
                " pass --set width= the longest of the task"
            )
    questions = texts["train" if mode == "training" else "test"]
    return _batches(_endless(questions, mode, seed), numbers, shape, mode, batch_size)


def read_questions(path: Path) -> list[Question]:
    """The questions of one file, each with the sentences that its story has before it.

    Raises:
        DataError: a line is not in the format, or there is no question; names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x} at {error.start}") from None
    found: list[Question] = []
    story: list[Sentence] = []
    expected = 1
    for row, line in enumerate(lines, start=1):
        origin = f"{path}: line {row}"
        number, _, text = line.partition(" ")
        if not _NUMBER.fullmatch(number) or int(number) not in (1, expected):
            begin = "1" if expected == 1 else f"{expected}, or 1 for a new story"
            raise DataError(f"{origin}: expected a line that begins with the number {begin}, found '{line[:40]}'")
        if int(number) == 1:
            story = []
        expected = int(number) + 1
        parts = text.split("\t")
        if len(parts) not in (1, 3):
            raise DataError(
                f"{origin}: expected a sentence, or a question, a tab, an answer, a tab and numbers; found {len(parts) - 1} tabs"
            )
        sentence = tokenize(parts[0])
        if not sentence:
            raise DataError(f"{origin}: expected words after the number, found none")
        if len(parts) == 1:
            story.append(sentence)
            continue
        answer = parts[1].strip().lower()
        if not answer:
            raise DataError(f"{origin}: expected an answer after the first tab, found none")
        found.append(Question(tuple(story), sentence, answer, origin))
    if not found:
        raise DataError(f"{path}: expected at least one question (a line with two tabs), found {len(lines)} lines without")
    return found


def tokenize(text: str) -> Sentence:
    """Words and marks in lower case, without the full stop or question mark at the end.

    >>> tokenize("Where is the apple? ")
    ('where', 'is', 'the', 'apple')
    """
    tokens = _TOKEN.findall(text.lower())
    return tuple(tokens[:-1] if tokens and tokens[-1] in (".", "?") else tokens)


def number_words(questions: Sequence[Question]) -> dict[str, int]:
    """Every word of stories, questions and answers, numbered from 1 by the alphabet."""
    words = {w for q in questions for sentence in (*q.story, q.question, (q.answer,)) for w in sentence}
    return {word: number for number, word in enumerate(sorted(words), start=NIL + 1)}


def synthetic_batches(shape: Shape, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Batches without end of made-up stories as in task 1: people move, the question is where one of them is.

    Raises:
        OptionError: the words or the sentences of task 1 do not fit into `shape`.
    """
    if shape.words <= len(SYNTHETIC_WORDS) or shape.width < SYNTHETIC_WIDTH:
        raise OptionError(
            f"synthetic stories have {len(SYNTHETIC_WORDS)} words besides nil and sentences of {SYNTHETIC_WIDTH}, but words is"
            f" {shape.words} and width {shape.width}; set at least {len(SYNTHETIC_WORDS) + 1} and {SYNTHETIC_WIDTH}, or pass --data"
        )
    numbers = {word: number for number, word in enumerate(SYNTHETIC_WORDS, start=NIL + 1)}
    return _batches(_invented(np.random.default_rng(seed)), numbers, shape, mode, batch_size)


def _invented(generator: np.random.Generator) -> Iterator[Question]:
    """One question, any of the five, of each of endless stories, as if all questions were shuffled."""

    def pick(choices: Sequence[str]) -> str:
        return choices[int(generator.integers(len(choices)))]

    while True:
        where: dict[str, str] = {}
        story: list[Sentence] = []
        for _ in range(_SENTENCES_A_QUESTION * int(generator.integers(1, _QUESTIONS_A_STORY, endpoint=True))):
            name = pick(NAMES)
            where[name] = pick(PLACES)
            move = MOVES[int(generator.integers(len(MOVES)))]
            story.append((name, *move, "to", "the", where[name]))
        name = pick(sorted(where))
        yield Question(tuple(story), ("where", "is", name), where[name])


def _file(folder: Path, task: int, part: str) -> Path:
    pattern = f"qa{task}_*_{part}.txt"
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that holds bAbI's '{pattern}'")
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        there = "none" if not found else ", ".join(path.name for path in found)
        raise DataError(f"{folder}: expected one file '{pattern}', found {there}")
    return found[0]


def _endless(questions: Sequence[Question], mode: str, seed: int) -> Iterator[Question]:
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(questions)) if mode == "training" else np.arange(len(questions))
        yield from (questions[place] for place in order)


def _batches(source: Iterator[Question], numbers: dict[str, int], shape: Shape, mode: str, batch_size: int) -> Iterator[Values]:
    while True:
        story = np.full((batch_size, shape.memory, shape.width), NIL, np.int32)
        question = np.full((batch_size, shape.width), NIL, np.int32)
        answer = np.empty(batch_size, np.int32)
        for row in range(batch_size):
            item = next(source)
            for place, sentence in enumerate(item.story[::-1][: shape.memory]):
                story[row, place, : len(sentence)] = [numbers[w] for w in sentence]
            question[row, : len(item.question)] = [numbers[w] for w in item.question]
            answer[row] = numbers[item.answer]
        values = {"story": story, "question": question}
        yield values | {"answer": answer} if mode == "training" else values
