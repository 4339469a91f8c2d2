"""Recurrent translation of English to French with attention (WMT).

A training step is one minibatch of sentence pairs of one bucket: encoder, attending decoder fed with the true words, sampled softmax,
gradients of all parameters, clipping and the optimiser's update. An inference step encodes the sources and decodes greedily: each
decoder step makes logits of the whole vocabulary and feeds the best word to the next. Cutting text into words, padding, lowering the
learning rate and turning numbers into words are not part of a step.

Encoder and decoder are stacks of 3 basic LSTM layers of width w without peepholes, forget bias 1 (z = [x, h] K + b, cut into i, j, f,
o; c' = sigmoid(f + 1) c + sigmoid(i) tanh(j), h' = sigmoid(o) tanh(c')), embeddings of width w, vocabularies of V = 40,000. The source
is padded to the bucket and reversed. The decoder starts from the encoder's last state, of all layers. At each step

    x = [word, context] X + b      the context of the step before, zero at first; x is what the LSTM reads
    y = [c1, h1, c2, h2, c3, h3] Q + b                    the query, of the state after the step
    a = softmax over source places of v . tanh(k + y)     with keys k, a 1x1 convolution of the encoder's top outputs
    context = sum of a x top outputs;  output = [h3, context] O + b;  logits = output P + b

Parameters, in w^2 and w: two embeddings 2 V w; 6 layers of 2 w x 4 w and 4 w: 48 w^2 + 24 w; X 2 w^2 + w; keys w^2; Q 6 w^2 + w; v w;
O 2 w^2 + w; P V w + V. Together 3 V w + V + 59 w^2 + 28 w: 184,814,656 at w = 1024 and 34,633,792 at w = 256.

The loss of each decoder step is a sampled softmax over the true word and 512 words drawn log-uniformly anew at each step, weighted 0
at padding and at the last step, summed over time, divided by the sentence's total weight, averaged over the batch. SGD with rate 0.5;
the gradient is clipped to global norm 5. The rate is a variable: 0.99 times as much whenever the loss exceeds the last three, outside
the step.

Decided here: time is unrolled in the graph, as in Fathom, whose buckets exist for that; the longest bucket has 50 steps, and a loop
would add several ops of its own to each step's hundred or so. The bucket is an option, by default (20, 25), into which go sentences of
common length: products of a training step at width 1024 are 272 G MACs there, and twice as many in (40, 50). The 3 x T partial
gradients of the decoder's cells, which live until they are summed, are 2.5 GB there and 5 GB in (40, 50). Batches of 64, as in Fathom.
The LSTM is spelled in products and elementwise ops and attention in products and sums, as in Fathom, and not as TensorFlow's LSTM
block, so that op types compare. Padding is attended to as in Fathom. What is gathered (embeddings, and P and its bias in the sampled
softmax) gets its update by rows; the global norm is TensorFlow's, which counts the rows of a word that occurs more than once one by
one. P is kept as [V, w], of which rows can be gathered. How many of the drawn words are the true one differs from step to step, and
with it the shapes of a few tensors: each step of a trace is a structure of its own. Every parameter starts uniform in [-0.08, 0.08]
(section 3.4 of the paper). Width and depth are of Fathom's kind: the paper has 4 layers of 1000, no attention (which is of Bahdanau,
Cho, Bengio, arXiv 1409.0473) and batches of 128.

`paper` is what Fathom ran: width 256, and P kept as [w, V], transposed in every training step for the sampled softmax, so that its
gradient is dense. Fathom read one sentence pair and repeated it; in inference it made each step's logits twice and the loss as well;
not so here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fathom_trace.data import parallel_text
from fathom_trace.errors import OptionError
from fathom_trace.options import option
from fathom_trace.parameters import Parameter
from fathom_trace.workload import InputSpec, Preset, Program, Values

CITATION = 'I. Sutskever, O. Vinyals, Q. V. Le, "Sequence to Sequence Learning with Neural Networks", NIPS 2014, arXiv 1409.3215'
DATA_FORMAT = parallel_text.FORMAT

_FORGET_BIAS = 1.0
_LEAST_WEIGHT = 1e-12

State = list[tuple[Any, Any]]
"""c and h [batch, width] of each layer."""


@dataclass(frozen=True)
class Options:
    """What can be changed with `--set`."""

    bucket: int = option(
        2, "source and target steps: 0 is 5 and 10, 1 is 10 and 15, 2 is 20 and 25, 3 is 40 and 50", choices=(0, 1, 2, 3)
    )
    vocabulary: int = option(40_000, "words of each language, with the 4 special ones")
    width: int = option(1024, "units of each LSTM layer and of the embeddings")
    layers: int = option(3, "LSTM layers of the encoder, and of the decoder")
    samples: int = option(512, "words drawn for the sampled softmax of each step")
    projection: str = option(
        "rows", "how the output projection is kept: a row a word, or a column a word", choices=("rows", "columns")
    )
    learning_rate: float = option(0.5, "step size of the update")
    clip_norm: float = option(5.0, "largest global norm of the gradient")
    initial_range: float = option(0.08, "parameters start uniform between minus this and this")
    source_language: str = option("en", "ending of the source files that --data reads")
    target_language: str = option("fr", "ending of the target files that --data reads")
    lines: int = option(100_000, "lines that --data reads of each file; 0 reads all")

    def __post_init__(self) -> None:
        if min(self.width, self.layers, self.samples) < 1:
            raise OptionError("seq2seq needs at least 1 in each of width, layers and samples")
        if self.vocabulary <= max(self.samples, parallel_text.SPECIAL):
            raise OptionError(f"vocabulary is {self.vocabulary}; it must exceed samples ({self.samples}) and the 4 special words")
        if self.clip_norm <= 0 or self.lines < 0:
            raise OptionError(f"clip_norm is {self.clip_norm} and lines {self.lines}; set one above and one from 0")


_BATCH = {"training": 64, "inference": 64}
_TINY = replace(Options(), bucket=0, vocabulary=200, width=32, samples=16, initial_range=0.3)

PRESETS = {
    "seminal": Preset(Options(), _BATCH, 184_814_656, "the network of Fathom at width 1024"),
    "paper": Preset(replace(Options(), width=256, projection="columns"), _BATCH, 34_633_792, "the network that Fathom measured"),
    "tiny": Preset(_TINY, {"training": 4, "inference": 4}, 80_712, "width 32, 200 words and the shortest bucket"),
}


def parameters(options: Options) -> list[Parameter]:
    """All parameters; kernels are [in, out], the keys' is [1, 1, in, out]."""
    vocabulary, width = options.vocabulary, options.width
    shapes: dict[str, tuple[int, ...]] = {}
    for side in ("encoder", "decoder"):
        shapes[f"{side}_embedding/table"] = (vocabulary, width)
        for layer in range(1, options.layers + 1):
            shapes |= _dense(f"{side}{layer}", 2 * width, 4 * width)
    shapes |= _dense("decoder_input", 2 * width, width)
    shapes["attention_keys/kernel"] = (1, 1, width, width)
    shapes |= _dense("attention_query", 2 * options.layers * width, width)
    shapes["attention_score/kernel"] = (width,)
    shapes |= _dense("decoder_output", 2 * width, width)
    shapes["projection/kernel"] = (vocabulary, width) if options.projection == "rows" else (width, vocabulary)
    shapes["projection/bias"] = (vocabulary,)
    return [Parameter(name, shape, half_range=options.initial_range) for name, shape in shapes.items()]


def _dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def inputs(options: Options, mode: str, batch_size: int) -> tuple[InputSpec, ...]:
    """Source words, and in training what the decoder reads and predicts, and its weights; time comes first."""
    return parallel_text.input_specs(_shape(options), mode, batch_size)


def synthetic(options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Made-up sentence pairs of the bucket, with Zipf's word frequencies."""
    return parallel_text.synthetic_batches(_shape(options), mode, batch_size, seed)


def read_data(folder: Path, options: Options, mode: str, batch_size: int, seed: int) -> Iterator[Values]:
    """Sentence pairs of the bucket from the text files in `folder`, without end."""
    languages = (options.source_language, options.target_language)
    return parallel_text.read_batches(folder, languages, options.lines, _shape(options), mode, batch_size, seed)


def _shape(options: Options) -> parallel_text.Shape:
    return parallel_text.Shape(options.vocabulary, options.bucket)


def build(options: Options, mode: str, batch_size: int, seed: int) -> Program:
    """The step: `loss` and `gradient_norm` in training; in inference each step's logits, `logits_00`, ..., and `tokens` [T, batch]."""
    import tensorflow as tf  # here, so that presets and inputs are known at once and without TensorFlow

    from fathom_trace.capture import training

    variables = training.make_variables(parameters(options), seed)
    trainable = list(variables.values())
    steps = _shape(options).target_length

    def infer(source: Any, start: Any) -> dict[str, Any]:
        network = _Network(options, variables, batch_size)
        decoder = _Decoder(network, *network.encode(source))
        outputs, tokens, token = {}, [], start
        for step in range(steps):
            logits = network.project(decoder.step(network.embed("decoder_embedding", token)))
            with tf.name_scope("projection"):
                token = tf.argmax(logits, 1, output_type=tf.int32)
            outputs[f"logits_{step:02}"] = logits
            tokens.append(token)
        return {**outputs, "tokens": tf.stack(tokens, name="tokens")}

    if mode == "inference":
        return Program(tf.function(infer, autograph=False), trainable, roles={f"logits_{step:02}": "logits" for step in range(steps)})

    optimizer = training.gradient_descent(trainable, options.learning_rate)

    def train(source: Any, decoder_input: Any, target: Any, weight: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            network = _Network(options, variables, batch_size)
            decoder = _Decoder(network, *network.encode(source))
            outputs = [decoder.step(word) for word in tf.unstack(network.embed("decoder_embedding", decoder_input))]
            loss = network.sampled_loss(outputs, target, weight, seed)
        with tf.name_scope("gradients"):
            gradients = tape.gradient(loss, trainable)
        with tf.name_scope("clip"):
            gradients, norm = tf.clip_by_global_norm(gradients, options.clip_norm)
        optimizer.apply(gradients)
        return {"loss": loss, "gradient_norm": norm}

    return Program(tf.function(train, autograph=False), trainable, optimizer.slots, optimizer.state)


class _Network:
    """The layers, for the step that is being traced. What is used at every time step is read from its variable once."""

    def __init__(self, options: Options, variables: Mapping[str, Any], batch_size: int) -> None:
        import tensorflow as tf

        self.tf: Any = tf
        self.options, self.batch_size = options, batch_size
        self.variables = variables
        self._values: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """The value of a variable; the same tensor at each use."""
        if name not in self._values:
            self._values[name] = self.tf.convert_to_tensor(self.variables[name])
        return self._values[name]

    def zeros(self) -> Any:
        """Zeros [batch, width]."""
        return self.tf.fill([self.batch_size, self.options.width], 0.0)

    def embed(self, name: str, words: Any) -> Any:
        """Word numbers [...] as rows of a table [..., width]."""
        with self.tf.name_scope(name):
            return self.tf.nn.embedding_lookup(self.variables[f"{name}/table"], words)

    def dense(self, name: str, parts: Sequence[Any]) -> Any:
        """[batch, n] parts side by side, times the layer's kernel, plus its bias."""
        tf = self.tf
        with tf.name_scope(name):
            return tf.nn.bias_add(tf.matmul(tf.concat(parts, 1), self.value(f"{name}/kernel")), self.value(f"{name}/bias"))

    def lstm(self, side: str, x: Any, state: State) -> State:
        """The state of all layers after one more step of input `x` [batch, width]."""
        tf = self.tf
        found: State = []
        for layer, (c, h) in enumerate(state, start=1):
            z = self.dense(f"{side}{layer}", [x, h])
            with tf.name_scope(f"{side}{layer}"):
                i, j, f, o = tf.split(z, 4, 1)
                c = c * tf.sigmoid(f + _FORGET_BIAS) + tf.sigmoid(i) * tf.tanh(j)
                x = tf.tanh(c) * tf.sigmoid(o)
            found.append((c, x))
        return found

    def encode(self, source: Any) -> tuple[State, Any]:
        """The state after the source [S, batch] and the top layer's outputs [batch, S, 1, width]."""
        zeros = self.zeros()
        state: State = [(zeros, zeros)] * self.options.layers
        outputs = []
        for word in self.tf.unstack(self.embed("encoder_embedding", source)):
            state = self.lstm("encoder", word, state)
            outputs.append(state[-1][1])
        with self.tf.name_scope("attention_keys"):
            return state, self.tf.expand_dims(self.tf.stack(outputs, 1), 2)

    def project(self, output: Any) -> Any:
        """Logits [batch, vocabulary]."""
        tf = self.tf
        with tf.name_scope("projection"):
            kernel, bias = self.value("projection/kernel"), self.value("projection/bias")
            return tf.nn.bias_add(tf.matmul(output, kernel, transpose_b=self.options.projection == "rows"), bias)

    def sampled_loss(self, outputs: Sequence[Any], target: Any, weight: Any, seed: int) -> Any:
        """The mean over sentences of the loss per word, from the decoder's outputs and targets and weights [T, batch]."""
        tf, options = self.tf, self.options
        with tf.name_scope("loss"):
            kernel = self.variables["projection/kernel"]
            if options.projection == "columns":
                kernel = tf.transpose(self.value("projection/kernel"))
            labels = tf.unstack(tf.expand_dims(tf.cast(target, tf.int64), 2))
            losses = [
                share
                * tf.nn.sampled_softmax_loss(
                    kernel, self.variables["projection/bias"], label, output, options.samples, options.vocabulary, seed=seed + step
                )
                for step, (output, label, share) in enumerate(zip(outputs, labels, tf.unstack(weight), strict=True))
            ]
            return tf.reduce_mean(tf.add_n(losses) / (tf.reduce_sum(weight, 0) + _LEAST_WEIGHT))


class _Decoder:
    """The decoder's state between its steps."""

    def __init__(self, network: _Network, state: State, memory: Any) -> None:
        """`state` and `memory` [batch, S, 1, width] are what the encoder leaves."""
        self.network, self.state, self.memory = network, state, memory
        self.context = network.zeros()
        with network.tf.name_scope("attention_keys"):
            self.keys = network.tf.nn.conv2d(memory, network.value("attention_keys/kernel"), strides=1, padding="SAME")

    def step(self, word: Any) -> Any:
        """The output [batch, width] after one more word [batch, width]."""
        network = self.network
        self.state = network.lstm("decoder", network.dense("decoder_input", [word, self.context]), self.state)
        self.context = self.attend()
        return network.dense("decoder_output", [self.state[-1][1], self.context])

    def attend(self) -> Any:
        """The context [batch, width]: the encoder's outputs, weighted by how well each fits to the decoder's state."""
        network, tf = self.network, self.network.tf
        batch, steps, _, width = self.memory.shape
        query = network.dense("attention_query", [part for layer in self.state for part in layer])
        with tf.name_scope("attention_score"):
            fit = network.value("attention_score/kernel") * tf.tanh(self.keys + tf.reshape(query, [batch, 1, 1, width]))
            share = tf.nn.softmax(tf.reduce_sum(fit, [2, 3]))
            return tf.reduce_sum(tf.reshape(share, [batch, steps, 1, 1]) * self.memory, [1, 2])
