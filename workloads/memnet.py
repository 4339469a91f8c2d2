"""End-to-end memory network that answers questions about short stories (bAbI).

A training step is one minibatch of stories, questions and answers: forward pass, softmax cross-entropy, gradients of all parameters,
clipping and the optimiser's update. An inference step is the forward pass, up to and including the softmax over the words. Turning
text into word numbers, lowering the learning rate and evaluating answers are not part of a step.

The model is that of the paper's section 4.1 with adjacent weight tying. With J words a sentence and width d, word j of a sentence is
weighted by the position encoding l_kj = (1 - j/J) - (k/d)(1 - 2j/J) in dimension k. Of 3 hops, hop k reads memories m_i = sum_j l_j
A_k x_ij + T_k(i) with the weights p = softmax(u_k . m_i), takes from c_i, which is made like m_i of C_k, the sum o = sum_i p_i c_i,
and goes on with u_(k+1) = u_k + o. Tied: A_(k+1) = C_k, and the question's B = A_1 and the output W^T = C_3, so that there are 4
tables of words (V x d) and 4 of times (M x d), whose index counts from the latest sentence backwards: 4 x 20 x 20 + 4 x 10 x 20 =
2,400 parameters at V = 20 words with nil, M = 10 sentences, d = 20; 5,600 at M = 50. Row 0 of each table of words is nil, which pads:
it is zero and its gradient is set to zero. SGD with rate 0.01, batches of 32, the whole gradient scaled down to norm 40.

Decided here: the loss is summed over the batch, for which rate and norm were chosen (the authors' code sums too). J is the padded
length. An empty place of the memory, whose words are nil, takes part in the softmax with its time alone (in the authors' code with
nothing). One table makes c of one hop and m of the next, so each is looked up once. Products with the memory are elementwise products
and sums, as in Fathom, and not batched matrix products: they are the small memory ops of which its paper speaks. Gradients of the
tables, which have 20 rows and of which a batch looks up 1,920, are summed to dense ones before nil is zeroed, clipped and applied.
Initial values are N(0, 0.1^2) as in the paper; its linear start and random times are not used. The rate is a variable: it is to be
halved every 25 epochs, outside the step.

`paper` is what Fathom ran: one table A for m and c, of its own for the question and for the answer, one table of times, and the same
linear map H at each hop, u_(k+1) = H u_k + o: 1,800 parameters; Adam with rate 0.01, every gradient clipped to norm 40 by itself and
given noise N(0, 0.001^2), memories transposed before they are multiplied, position encoding twice as large. Its times counted from the
oldest sentence, padded behind the latest; here they count as above. Its inference ended at the logits; here the softmax follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom_trace.data import babi
from fathom_trace.errors import OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter
from fathom_trace.workload import InputSpec, Preset, Program, Values

CITATION = 'S. Sukhbaatar, A. Szlam, J. Weston, R. Fergus, "End-To-End Memory Networks", NIPS 2015, arXiv 1503.08895'
DATA_FORMAT = babi.FORMAT

_DEVIATION = 0.1


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    task: int = option(1, "bAbI task, 1 to 20, that --data reads; synthetic stories are always those of task 1")
    words: int = option(20, "words of the vocabulary, with nil")
    memory: int = option(10, "sentences of the memory; of longer stories the most recent ones are kept")
    width: int = option(6, "words of a sentence; shorter ones are padded with nil")
    embedding: int = option(20, "units of an embedding")
    hops: int = option(3, "times that the memory is read")
    tying: str = option(
        "adjacent", "which tables the hops share: each with the next, or all of them", choices=("adjacent", "layerwise")
    )
    position_scale: float = option(1.0, "factor of the position encoding")
    optimizer: str = option("sgd", "update rule", choices=("sgd", "adam"))
    learning_rate: float = option(0.01, "step size of the update")
    clip: str = option("whole", "what is scaled down to clip_norm: the whole gradient, or each variable's", choices=("whole", "each"))
    clip_norm: float = option(40.0, "largest norm of a gradient")
    gradient_noise: float = option(0.0, "standard deviation of what is added to each gradient; 0 leaves it out")

    def __post_init__(self) -> None:
        if min(self.memory, self.width, self.embedding, self.hops) < 1 or self.words < 2:
            raise OptionError("memnet needs at least 1 in each of memory, width, embedding and hops, and 2 words")
        if not 1 <= self.task <= babi.TASKS:
            raise OptionError(f"task is {self.task}; bAbI has tasks 1 to {babi.TASKS}")
        if self.clip_norm <= 0 or self.gradient_noise < 0:
            raise OptionError(f"clip_norm is {self.clip_norm} and gradient_noise {self.gradient_noise}; set one above and one from 0")


_BATCH = {"training": 32, "inference": 32}
_FATHOM = Options(tying="layerwise", position_scale=2.0, optimizer="adam", clip="each", gradient_noise=1e-3)
_TINY = replace(Options(), memory=4, embedding=8)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 2_400, "the memory network paper, adjacent tying, on task 1"),
    "paper": Preset(_FATHOM, _BATCH, 1_800, "the network that Fathom measured"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 4}, 768, "the seminal network with 4 sentences and 8 units"),
}


def parameters(options: Options) -> list[Parameter]:
    """All parameters: tables of words [words, embedding] whose row 0 is nil, tables of times [memory, embedding], and what is dense.

    Adjacent: `embedding{k}` makes the output memory of hop k and the input memory of hop k + 1; `embedding0` the question too.
    """
    words, times = (options.words, options.embedding), (options.memory, options.embedding)
    if options.tying == "layerwise":
        shapes = {"question/words": words, "memory/words": words, "memory/times": times}
        shapes |= {"hop/kernel": (options.embedding, options.embedding), "answer/kernel": words[::-1]}
    else:
        shapes = {f"embedding{k}/{kind}": s for k in range(options.hops + 1) for kind, s in (("words", words), ("times", times))}
    return [Parameter(name, shape, deviation=_DEVIATION) for name, shape in shapes.items()]


def position_encoding(width: int, embedding: int) -> NDArray[np.float32]:
    """l [width, embedding]: l_kj = (1 - j/J) - (k/d)(1 - 2j/J) for word j of J and dimension k of d, both from 1 (section 4.1)."""
    j = np.arange(1, width + 1)[:, None] / width
    k = np.arange(1, embedding + 1)[None, :] / embedding
    return ((1 - j) - k * (1 - 2 * j)).astype(np.float32)


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Stories and questions, and in training their answers."""
    return babi.input_specs(_shape(options), mode, batch_size)


def synthetic(options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Stories like those of bAbI's task 1."""
    return babi.synthetic_batches(_shape(options), mode, batch_size, seed)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Stories of one bAbI task from its text files in `folder`, without end."""
    return babi.read_batches(folder, options.task, _shape(options), mode, batch_size, seed)


def _shape(options: Options) -> babi.Shape:
    return babi.Shape(options.words, options.memory, options.width)


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step: `loss`, `logits` [batch, words] and perhaps `gradient_norm`; in inference `logits`, `probabilities`."""
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)
    for name, variable in variables.items():
        if name.endswith("words"):
            variable.assign(tf.concat([tf.zeros([1, options.embedding]), variable[1:]], 0))
    trainable = list(variables.values())
    forward = _adjacent if options.tying == "adjacent" else _layerwise
    encoding = options.position_scale * position_encoding(options.width, options.embedding)

    def infer(story: Any, question: Any) -> dict[str, Any]:
        logits = forward(options, variables, encoding, story, question)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits, name="softmax")}

    if mode == "inference":
        return Program(tf.function(infer, autograph=False), trainable)

    if options.optimizer == "adam":
        optimizer = training.adam(trainable, options.learning_rate)
    else:
        optimizer = training.gradient_descent(trainable, options.learning_rate)

    def train(story: Any, question: Any, answer: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = forward(options, variables, encoding, story, question)
            with tf.name_scope("loss"):
                loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=answer, logits=logits))
        with tf.name_scope("gradients"):
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, trainable)]
        outputs = {"loss": loss, "logits": logits}
        with tf.name_scope("clip"):
            if options.clip == "whole":
                gradients = _without_nil(variables, gradients)
                gradients, outputs["gradient_norm"] = tf.clip_by_global_norm(gradients, options.clip_norm)
            else:
                gradients = [tf.clip_by_norm(g, options.clip_norm) for g in gradients]
        if options.gradient_noise:
            with tf.name_scope("noise"):
                noise = [tf.random.normal(g.shape, stddev=options.gradient_noise, seed=seed + n) for n, g in enumerate(gradients)]
                gradients = [g + n for g, n in zip(gradients, noise, strict=True)]
        if options.clip == "each" or options.gradient_noise:
            gradients = _without_nil(variables, gradients)
        optimizer.apply(gradients)
        return outputs

    return Program(tf.function(train, autograph=False), trainable, optimizer.slots, optimizer.state)


def _adjacent(options: Options, variables: Mapping[str, Any], encoding: NDArray[np.float32], story: Any, question: Any) -> Any:
    """Logits [batch, words]; the output memory of each hop is the input memory of the next."""
    import tensorflow as tf

    with tf.name_scope("embedding0"):
        u = _sentences(variables["embedding0/words"], encoding, question)
        m = _sentences(variables["embedding0/words"], encoding, story) + variables["embedding0/times"]
    for hop in range(1, options.hops + 1):
        with tf.name_scope(f"embedding{hop}"):
            c = _sentences(variables[f"embedding{hop}/words"], encoding, story) + variables[f"embedding{hop}/times"]
        with tf.name_scope(f"hop{hop}"):
            weights = tf.nn.softmax(tf.reduce_sum(m * tf.expand_dims(u, 1), 2))
            u += tf.reduce_sum(c * tf.expand_dims(weights, 2), 1)
        m = c
    with tf.name_scope("answer"):
        return tf.matmul(u, variables[f"embedding{options.hops}/words"], transpose_b=True)


def _layerwise(options: Options, variables: Mapping[str, Any], encoding: NDArray[np.float32], story: Any, question: Any) -> Any:
    """Logits [batch, words]; one memory m serves as input and output of every hop. The transposes are Fathom's."""
    import tensorflow as tf

    with tf.name_scope("question"):
        u = _sentences(variables["question/words"], encoding, question)
    with tf.name_scope("memory"):
        m = _sentences(variables["memory/words"], encoding, story) + variables["memory/times"]
    for hop in range(1, options.hops + 1):
        with tf.name_scope(f"hop{hop}"):
            row = tf.transpose(tf.expand_dims(u, 2), [0, 2, 1])
            weights = tf.nn.softmax(tf.reduce_sum(m * row, 2))
            row = tf.transpose(tf.expand_dims(weights, 2), [0, 2, 1])
            o = tf.reduce_sum(tf.transpose(m, [0, 2, 1]) * row, 2)
            u = tf.matmul(u, variables["hop/kernel"]) + o
    with tf.name_scope("answer"):
        return tf.matmul(u, variables["answer/kernel"])


def _sentences(table: Any, encoding: NDArray[np.float32], numbers: Any) -> Any:
    """Sentences of word numbers [..., width] as vectors [..., embedding]: their words' rows of the table, weighted and summed."""
    import tensorflow as tf

    return tf.reduce_sum(tf.nn.embedding_lookup(table, numbers) * tf.constant(encoding), -2)


def _without_nil(variables: Mapping[str, Any], gradients: Sequence[Any]) -> list[Any]:
    """The gradients, row 0 of those of tables of words set to zero."""
    import tensorflow as tf

    with tf.name_scope("nil"):
        return [
            tf.concat([tf.zeros([1, g.shape[1]]), g[1:]], 0) if name.endswith("words") else g
            for name, g in zip(variables, gradients, strict=True)
        ]
