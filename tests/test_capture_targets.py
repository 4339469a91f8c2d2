"""Can a user's own program be captured: Keras files, SavedModels, callables?"""

from __future__ import annotations

from pathlib import Path

import pytest

from fathom_trace.capture import CaptureRequest, Plan, capture_request, is_target
from fathom_trace.checks import check
from fathom_trace.errors import CaptureError, OptionError, UnknownNameError
from fathom_trace.trace import Trace

pytestmark = pytest.mark.capture

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
QUICK = Plan(steps=1, warmup=0)


def shapes(trace: Trace, op: str) -> list[tuple[int, ...] | None]:
    return [trace.output_shape(e) for e, n in enumerate(trace.executions.node.tolist()) if trace.node_ops[n] == op]


def request(target: object, **more: object) -> Trace:
    return capture_request(CaptureRequest(str(target), plan=QUICK, **{"mode": "inference", **more}))


@pytest.fixture(scope="module")
def free_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keras") / "free.keras"
    keras.Sequential([keras.Input((None, None, 3), name="image"), keras.layers.Conv2D(4, 3, use_bias=False)]).save(path)
    return path


def test_free_dimensions_are_fixed_by_the_user(free_shape: Path) -> None:
    """Case A29: batch 2, 10 x 12 gives an output of [2,8,10,4]."""
    assert shapes(request(free_shape, shapes={"image": (2, 10, 12, 3)}), "Conv2D") == [(2, 8, 10, 4)]


@pytest.mark.parametrize("more", [{}, {"batch_size": 2}])
def test_a_free_dimension_is_an_error_that_names_it(free_shape: Path, more: dict[str, int]) -> None:
    with pytest.raises(CaptureError, match=r"input 'image' has shape \[[?2],\?,\?,3\].*--shape image=[28],8,8,3"):
        request(free_shape, **more)


def test_a_shape_that_does_not_fit_is_refused(free_shape: Path) -> None:
    with pytest.raises(CaptureError, match=r"does not fit the input's own shape \[\?,\?,\?,3\]"):
        request(free_shape, shapes={"image": (2, 10, 12, 4)})
    with pytest.raises(UnknownNameError, match="did you mean 'image'"):
        request(free_shape, shapes={"imag": (2, 10, 12, 3)})


def test_saved_model_by_signature(tmp_path: Path) -> None:
    """Case A28: Dense(5, no bias) on [None,6]; batch 4 gives [4,5], weights [6,5]."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, use_bias=False)])
    model.export(tmp_path / "model", verbose=False)
    trace = request(tmp_path / "model", signature="serving_default", batch_size=4)
    assert shapes(trace, "MatMul") == [(4, 5)]
    assert [trace.shapes[int(s)] for s in trace.variables.shape] == [(6, 5)]
    assert trace.provenance["form"] == "SavedModel signature serving_default"
    with pytest.raises(UnknownNameError, match="no signature of"):
        request(tmp_path / "model", signature="serving_defalt", batch_size=4)
    with pytest.raises(CaptureError, match="--mode inference"):
        request(tmp_path / "model", mode="training", batch_size=4)


def test_saved_model_of_tensorflow_1_shows_its_loop(tmp_path: Path) -> None:
    """Its graph has the loop and the branch written out. 6 trips: even ones are x w, odd ones tanh x; dear and cheap ones alternate."""
    old = tf.compat.v1
    path = tmp_path / "model"
    old.disable_control_flow_v2()
    try:
        with old.Graph().as_default() as graph, old.Session(graph=graph) as session:
            x = old.placeholder(tf.float32, [None, 3], name="image_place")
            w = old.get_variable("w", [3, 3], use_resource=True)

            def body(i, y):
                return i + 1, old.cond(tf.equal(i % 2, 0), lambda: tf.matmul(tf.matmul(y, w), w), lambda: tf.tanh(y))

            _, y = old.while_loop(lambda i, y: i < 6, body, (0, x))
            session.run(old.global_variables_initializer())
            old.saved_model.simple_save(session, str(path), {"image": x}, {"y": y})
    finally:
        old.enable_control_flow_v2()
    trace = capture_request(
        CaptureRequest(str(path), mode="inference", shapes={"image": (2, 3)}, plan=Plan(steps=2, warmup=0, inter_threads=2))
    )
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.wrong_edges, found.complete) == (0, 0, 0, True)
    assert shapes(trace, "MatMul") == [(2, 3)] * 6
    assert shapes(trace, "Tanh") == [(2, 3)] * 3
    iterations = [
        trace.iteration(int(trace.executions.path[e]))
        for e, n in enumerate(trace.executions.node.tolist())
        if trace.node_ops[n] == "Tanh"
    ]
    assert iterations == [(1,), (3,), (5,)]
    assert [trace.strings[int(i)] for i in trace.variables.variable_name] == ["w"]
    assert (trace.provenance["opaque_calls"], trace.provenance["unplaced_records"]) == ([], {})


def test_recurrent_layer_counts_every_step(tmp_path: Path) -> None:
    """Case B7: LSTM(4), T=5, 3 features, batch 2: 10 products, 5 of [2,3][3,16] and 5 of [2,4][4,16]."""
    keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4)]).save(tmp_path / "lstm.keras")
    trace = request(tmp_path / "lstm.keras", batch_size=2)
    products = [e for e, n in enumerate(trace.executions.node.tolist()) if trace.node_ops[n] == "MatMul"]
    assert len(products) == 10
    assert len({int(trace.executions.node[e]) for e in products}) == 2
    macs = 0
    for e in products:
        rows, inner = trace.shapes[int(trace.tensors.shape[trace.inputs(e)[0]])]
        macs += rows * inner * 16
    assert 2 * macs == 2_240
    assert check(trace).complete


def test_training_a_keras_file(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, activation="relu", name="hidden"), keras.layers.Dense(3)])
    model.save(tmp_path / "m.keras")
    options = {"mode": "training", "batch_size": 4, "loss": "sparse_categorical_crossentropy", "optimizer": "adam"}
    trace = request(tmp_path / "m.keras", **options)
    found = check(trace)
    assert (found.causality_violations, found.unresolved_inputs, found.complete) == (0, 0, True)
    names = [trace.strings[int(v)] for v in trace.variables.variable_name]
    slots = {names[i]: names[int(o)] for i, o in enumerate(trace.variables.slot_of.tolist()) if o >= 0}
    assert {"hidden/kernel", "hidden/bias"} <= set(slots.values())
    assert sum(trace.variables.trainable) == 4, "two kernels, two biases"
    roles = {
        trace.strings[int(n)]: trace.strings[int(r)] for n, r in zip(trace.interface.user_name, trace.interface.role, strict=True)
    }
    assert roles["loss"] == "loss"
    assert roles["label"] == "label"
    with pytest.raises(CaptureError, match="needs --loss"):
        request(tmp_path / "m.keras", mode="training", batch_size=4)


def test_callables_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np, tensorflow as tf\n"
        "@tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name='x')])\n"
        "def signed(x):\n    return {'logits': tf.matmul(x, tf.ones([3, 2]))}\n"
        "def with_example():\n    return (lambda x: tf.nn.relu(x)), [np.ones([5, 2], np.float32)]\n"
        "def nothing():\n    return 3\n"
    )
    assert shapes(request(f"{file}:signed", batch_size=7), "MatMul") == [(7, 2)]
    assert shapes(request(f"{file}:with_example"), "Relu") == [(5, 2)]
    with pytest.raises(UnknownNameError, match="did you mean 'signed'"):
        request(f"{file}:sined")
    with pytest.raises(CaptureError, match="gave a int"):
        request(f"{file}:nothing")


def test_a_workload_comes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vgg").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_target("vgg")
    assert is_target("vgg/")
    assert is_target("vgg.keras")


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"does not exist; give a workload, a \.keras file"):
        request(tmp_path / "absent.keras")
    damaged = tmp_path / "damaged.keras"
    damaged.write_bytes(b"not a model")
    with pytest.raises(CaptureError, match="is not a Keras model"):
        request(damaged)
    with pytest.raises(OptionError, match="--set and --data are for the workloads"):
        request(damaged, settings={"a": "1"})


def test_training_a_model_with_two_outputs_has_a_label_for_each(tmp_path: Path) -> None:
    given = keras.Input((5,), name="features")
    keras.Model(given, [keras.layers.Dense(3)(given), keras.layers.Dense(2)(given)]).save(tmp_path / "two.keras")
    trace = request(tmp_path / "two.keras", mode="training", batch_size=2, loss="mse", optimizer="sgd")
    labels = {
        trace.strings[int(name)]: trace.output_shape(
            next(e for e, n in enumerate(trace.executions.node.tolist()) if n == int(trace.interface.node[row]))
        )
        for row, name in enumerate(trace.interface.user_name)
        if trace.strings[int(trace.interface.role[row])] == "label"
    }
    assert labels == {"label_0": (2, 3), "label_1": (2, 2)}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x = 1", "is a int; it must be a tf.function"),
        ("def x(needed):\n    return None", r"x\(\) failed: TypeError"),
        ("import sys\ndef x():\n    sys.exit(3)", r"x\(\) failed: SystemExit"),
        (
            "import tensorflow as tf\ndef x():\n    def f(a):\n        raise ValueError('no')\n    return f, [1.0]",
            "cannot be traced.*no",
        ),
    ],
)
def test_a_users_code_that_fails_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    file = tmp_path / "fails.py"
    file.write_text(body + "\n")
    with pytest.raises(CaptureError, match=said):
        request(f"{file}:x")


def test_ragged_and_single_example_inputs(tmp_path: Path) -> None:
    file = tmp_path / "examples.py"
    file.write_text(
        "import numpy as np, tensorflow as tf\n"
        "def ragged():\n    return (lambda r: tf.nn.relu(r.flat_values)), [tf.ragged.constant([[1.0], [2.0, 3.0]])]\n"
        "def single():\n    return (lambda a: tf.nn.relu(a)), np.ones([5, 2], np.float32)\n"
    )
    assert shapes(request(f"{file}:ragged"), "Relu") == [(3,)]
    assert shapes(request(f"{file}:single"), "Relu") == [(5, 2)]


def test_a_program_without_operations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("import tensorflow as tf\n@tf.function\ndef nothing():\n    pass\n")
    with pytest.raises(CaptureError, match="has no operations"):
        request(f"{tmp_path / 'empty.py'}:nothing", mode="inference")


def test_training_a_keras_model_that_cannot_be_called_is_one_line(tmp_path: Path) -> None:
    body = """import keras, tensorflow as tf
class Wrong(keras.layers.Layer):
    def call(self, x):
        if not isinstance(x, keras.KerasTensor):
            raise RuntimeError("not today")
        return x
def model():
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(2)(Wrong()(x)))
"""
    (tmp_path / "wrong.py").write_text(body)
    with pytest.raises(CaptureError, match="not today"):
        request(f"{tmp_path / 'wrong.py'}:model", mode="training", loss="mse", optimizer="adam")
