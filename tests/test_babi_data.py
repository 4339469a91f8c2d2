"""Does the bAbI reader read the real format, number and place words as the model expects, and say what is wrong with a wrong file?"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fathom_trace.data import babi
from fathom_trace.errors import DataError, OptionError
from fathom_trace.workload import Values

TRAIN = """1 Mary moved to the bathroom.
2 John went back to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went to the garden.
5 Where is Daniel? \tgarden\t4
1 Sandra travelled to the office.
2 Where is Sandra? \toffice\t1
"""
TEST = """1 Mary moved to the office.
2 Where is Mary? \toffice\t1
"""
WORDS = [
    *("back", "bathroom", "daniel", "garden", "hallway", "is", "john", "mary"),
    *("moved", "office", "sandra", "the", "to", "travelled", "went", "where"),
]
"""All words of both files by the alphabet."""

SHAPE = babi.Shape(words=17, memory=2, width=6)


def folder(path: Path, train: str = TRAIN, test: str = TEST) -> Path:
    (path / "qa1_single-supporting-fact_train.txt").write_text(train, encoding="utf-8")
    (path / "qa1_single-supporting-fact_test.txt").write_text(test, encoding="utf-8")
    (path / "qa10_indefinite-knowledge_train.txt").write_text("no story", encoding="utf-8")
    return path


def first(path: Path, mode: str, batch_size: int, shape: babi.Shape = SHAPE) -> Values:
    return next(babi.read_batches(path, 1, shape, mode, batch_size, seed=0))


def padded(text: str, width: int = 6) -> list[int]:
    numbers = [WORDS.index(word) + 1 for word in text.split()]
    return numbers + [0] * (width - len(numbers))


def test_questions_know_the_sentences_before_them_in_their_own_story(tmp_path: Path) -> None:
    found = babi.read_questions(folder(tmp_path) / "qa1_single-supporting-fact_train.txt")
    mary, john, daniel = (
        tuple(s.split()) for s in ("mary moved to the bathroom", "john went back to the hallway", "daniel went to the garden")
    )
    assert [q.story for q in found] == [(mary, john), (mary, john, daniel), (("sandra", "travelled", "to", "the", "office"),)]
    assert [(" ".join(q.question), q.answer) for q in found] == [
        ("where is mary", "bathroom"),
        ("where is daniel", "garden"),
        ("where is sandra", "office"),
    ]


def test_inference_reads_the_test_file_with_words_of_both(tmp_path: Path) -> None:
    values = first(folder(tmp_path), "inference", 2)
    assert set(values) == {"story", "question"}
    assert values["story"].tolist() == [[padded("mary moved to the office"), [0] * 6]] * 2
    assert values["question"].tolist() == [padded("where is mary")] * 2


def test_the_memory_holds_the_latest_sentences_latest_first(tmp_path: Path) -> None:
    """The second question comes after three sentences; two fit."""
    batches = islice(babi.read_batches(folder(tmp_path), 1, SHAPE, "training", 1, seed=3), 3)
    by_question = {tuple(v["question"][0].tolist()): v for v in batches}
    assert len(by_question) == 3
    values = by_question[tuple(padded("where is daniel"))]
    assert values["story"].tolist() == [[padded("daniel went to the garden"), padded("john went back to the hallway")]]
    assert values["answer"].tolist() == [WORDS.index("garden") + 1]
    assert {name: v.dtype for name, v in values.items()} == dict.fromkeys(("story", "question", "answer"), np.int32)


def test_training_takes_every_question_once_a_round_in_an_order_of_the_seed(tmp_path: Path) -> None:
    path = folder(tmp_path, "1 a b.\n" + "".join(f"{n} w{n}? \tx\t1\n" for n in range(2, 32)))

    def rounds(seed: int) -> list[list[int]]:
        batches = babi.read_batches(path, 1, babi.Shape(60, 1, 6), "training", 30, seed)
        return [next(batches)["question"][:, 0].tolist() for _ in range(2)]

    one, two = rounds(0)
    assert sorted(one) == sorted(two)
    assert len(set(one)) == 30
    assert one != two
    assert rounds(0) == [one, two] != rounds(1)


def test_an_answer_of_several_words_is_one_word(tmp_path: Path) -> None:
    path = folder(tmp_path, "1 Mary got the milk.\n2 What is Mary carrying? \tmilk,apple\t1\n")
    [question] = babi.read_questions(path / "qa1_single-supporting-fact_train.txt")
    assert question.answer == "milk,apple"
    assert "milk,apple" in babi.number_words([question])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 a b.\n3 c d.\n", "line 2: expected a line that begins with the number 2, or 1 for a new story, found '3 c d.'"),
        ("a b.\n", "line 1: expected a line that begins with the number 1, found 'a b.'"),
        ("1 a b.\n2 where? \tx\n", "line 2: expected a sentence, or a question, a tab, an answer, a tab and numbers; found 1 tabs"),
        ("1 a b.\n2 where? \t \t1\n", "line 2: expected an answer after the first tab, found none"),
        ("1 .\n", "line 1: expected words after the number, found none"),
        ("1 a b.\n2 c d.\n", "expected at least one question (a line with two tabs), found 2 lines without"),
        ("", "expected at least one question (a line with two tabs), found 0 lines without"),
    ],
)
def test_a_wrong_file_is_told_by_file_line_and_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        first(folder(tmp_path, text), "training", 1)
    assert str(caught.value).startswith(str(tmp_path / "qa1_single-supporting-fact_train.txt"))
    assert str(caught.value).endswith(f": {message}")


def test_text_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    (folder(tmp_path) / "qa1_single-supporting-fact_test.txt").write_bytes(b"1 caf\xe9.\n")
    with pytest.raises(DataError, match=r"_test\.txt: expected UTF-8 text, found byte 0xe9 at 5$"):
        first(tmp_path, "inference", 1)


def test_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a folder; give one that holds bAbI's 'qa1_\*_train\.txt'"):
        first(tmp_path / "nowhere", "training", 1)
    with pytest.raises(DataError, match=r"expected one file 'qa1_\*_train\.txt', found none"):
        first(tmp_path, "training", 1)
    (folder(tmp_path) / "qa1_other_train.txt").touch()
    with pytest.raises(DataError, match=r"found qa1_other_train\.txt, qa1_single-supporting-fact_train\.txt"):
        first(tmp_path, "training", 1)


def test_what_does_not_fit_into_the_model_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with pytest.raises(DataError, match="task 1 has 16 words, which with nil are more than the model's 16; pass --set words=17"):
        first(path, "training", 1, babi.Shape(16, 2, 6))
    with pytest.raises(
        DataError, match=r"line 3: expected sentences of at most 5 words up to this question, found 6; pass --set width="
    ):
        first(path, "training", 1, babi.Shape(17, 2, 5))


def test_synthetic_stories_are_stories_of_task_1() -> None:
    """19 words and nil, 6 words a sentence, 2 to 10 sentences; the answer is the place to which the person went last."""
    words = dict(enumerate(babi.SYNTHETIC_WORDS, start=1))
    assert len(words) == 19
    batches = list(islice(babi.synthetic_batches(babi.Shape(20, 10, 6), "training", 32, seed=0), 4))
    lengths = set()
    for values in batches:
        for story, question, answer in zip(values["story"], values["question"], values["answer"], strict=True):
            sentences = [[words[n] for n in s if n] for s in story.tolist() if s[0]]
            lengths.add(len(sentences))
            where, verb, name = (words[n] for n in question.tolist() if n)
            assert (where, verb) == ("where", "is")
            latest = next(s for s in sentences if s[0] == name)
            assert latest[-1] == words[int(answer)]
    assert lengths == {2, 4, 6, 8, 10}
    again = next(babi.synthetic_batches(babi.Shape(20, 10, 6), "training", 32, seed=0))
    assert all(np.array_equal(batches[0][name], again[name]) for name in again)
    assert set(next(babi.synthetic_batches(babi.Shape(20, 10, 6), "inference", 2, seed=0))) == {"story", "question"}


@pytest.mark.parametrize("shape", [babi.Shape(19, 10, 6), babi.Shape(20, 10, 5)])
def test_synthetic_stories_that_do_not_fit_are_refused(shape: babi.Shape) -> None:
    with pytest.raises(OptionError, match="synthetic stories have 19 words besides nil and sentences of 6"):
        babi.synthetic_batches(shape, "training", 1, seed=0)
