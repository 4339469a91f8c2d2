"""Programs that users bring: a Keras file, a SavedModel folder, or `file.py:callable`. Opening any of them runs its code.

Every free dimension must be fixed, by `batch_size` for the first one and by `shapes` (input name to full shape) for the others. Inputs
are synthetic, drawn uniformly: floats from [0, 1), integers from {0, 1} (an embedding has at least two rows), labels within the classes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from fathom_trace.capture.legacy import copied, is_written_out
from fathom_trace.capture.lift import KnownVariable
from fathom_trace.errors import CaptureError, FathomError, UnknownNameError, one_line
from fathom_trace.workload import InputSpec, Values, draw

SPARSE_LOSSES = ("sparse_categorical_crossentropy",)


@dataclass(frozen=True)
class TargetRequest:
    """How to run a user's program; see `capture.CaptureRequest` for the fields."""

    target: str
    mode: str
    batch_size: int
    shapes: Mapping[str, tuple[int, ...]]
    signature: str
    loss: str
    optimizer: str
    seed: int


@dataclass(frozen=True)
class TargetProgram:
    """A user's program, ready to lift: inputs by name in the order of the concrete function's own."""

    concrete: Any
    input_names: Sequence[str]
    batches: Iterator[Values]
    known: Sequence[KnownVariable] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    form: str = ""


def load_target(request: TargetRequest) -> TargetProgram:
    """The program that `request.target` names.

    Raises:
        CaptureError: it cannot be opened, has a free dimension, or cannot be run in the asked-for mode.
    """
    path_text, colon, attribute = request.target.rpartition(":")
    if colon and path_text.endswith(".py"):
        return _from_python(Path(path_text), attribute, request)
    path = Path(request.target)
    if path.is_dir() and (path / "saved_model.pb").is_file():
        return _from_saved_model(path, request)
    if path.is_file() and path.suffix in (".keras", ".h5", ".hdf5"):
        return _from_keras(_load_keras(path), request, "keras file")
    if not path.exists():
        raise CaptureError(f"{path} does not exist; give a workload, a .keras file, a SavedModel folder or file.py:callable")
    raise CaptureError(
        f"{path} is neither a .keras file nor a SavedModel folder (one with saved_model.pb); give one of them, or file.py:callable"
    )


# --- Keras ------------------------------------------------------------------------------------------------------------------------


def _load_keras(path: Path) -> Any:
    import keras

    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:  # whatever Keras raises for a damaged or foreign file
        raise CaptureError(
            f"{path} is not a Keras model that this Keras {keras.__version__} can load: {one_line(error)[:300]}"
        ) from error


def _from_keras(model: Any, request: TargetRequest, form: str) -> TargetProgram:
    inputs = _keras_inputs(model)
    _refuse_unknown_shapes(request, [t.name for t in inputs])
    specs = [_input_spec(t.name, t.shape, t.dtype, request) for t in inputs]
    if request.mode == "inference":
        return _keras_inference(model, specs, request, form)
    return _keras_training(model, specs, request, form)


def _keras_inputs(model: Any) -> list[Any]:
    try:
        return list(model.inputs)
    except (AttributeError, ValueError):
        raise CaptureError(
            f"the Keras model '{model.name}' has no defined inputs (a subclassed model?); give file.py:callable that returns"
            " (tf.function, example inputs) instead"
        ) from None


def _call(model: Any, values: Mapping[str, Any], specs: Sequence[InputSpec], training: bool) -> Any:
    ordered = [values[s.name] for s in specs]
    return model(ordered if len(ordered) > 1 else ordered[0], training=training)


def _named_outputs(model: Any, outputs: Any) -> dict[str, Any]:
    flat = tf.nest.flatten(outputs)
    names = list(getattr(model, "output_names", [])) or [f"output_{i}" for i in range(len(flat))]
    return dict(zip(names, flat, strict=False))


def _keras_inference(model: Any, specs: Sequence[InputSpec], request: TargetRequest, form: str) -> TargetProgram:
    def step(**values: Any) -> dict[str, Any]:
        return _named_outputs(model, _call(model, values, specs, training=False))

    roles = {"logits": "logits"}
    known = [KnownVariable(v.value, bool(v.trainable)) for v in model.variables]
    return _program(step, specs, request.seed, known, roles, form)


def _keras_training(model: Any, specs: Sequence[InputSpec], request: TargetRequest, form: str) -> TargetProgram:
    import keras

    if not request.loss:
        raise CaptureError("training a Keras model needs --loss (for example sparse_categorical_crossentropy) and --optimizer (sgd)")
    try:
        loss_function = keras.losses.get(request.loss)
        optimizer = keras.optimizers.get(request.optimizer or "sgd")
    except ValueError as error:
        raise CaptureError(f"Keras has no such loss or optimizer: {one_line(error)[:200]}") from None
    if not model.trainable_variables:
        raise CaptureError(f"the Keras model '{model.name}' has no trainable variables; use --mode inference")
    optimizer.build(model.trainable_variables)
    labels = _label_specs(model, specs, request)

    def step(**values: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(_call(model, values, specs, training=True))
            losses = [tf.reduce_mean(loss_function(values[y.name], o)) for y, o in zip(labels, outputs, strict=True)]
            loss = tf.add_n([*losses, *(tf.cast(e, losses[0].dtype) for e in model.losses)])
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    slots = _keras_slots(optimizer, model.trainable_variables)
    known = [KnownVariable(v.value, bool(v.trainable)) for v in model.variables]
    known += [KnownVariable(v.value, False, of, name) for v, of, name in slots]
    return _program(step, [*specs, *labels], request.seed, known, {"loss": "loss"}, form)


def _keras_slots(optimizer: Any, trainable: Sequence[Any]) -> list[tuple[Any, Any, str]]:
    """(slot, variable, slot name) of every optimiser variable; Keras names a slot `<path of the variable>_<name>`."""
    found: list[tuple[Any, Any, str]] = []
    by_path = sorted(((v.path.replace("/", "_"), v.value) for v in trainable), key=lambda item: -len(item[0]))
    for variable in optimizer.variables:
        own = variable.path.rpartition("/")[2]
        match = next(((p, v) for p, v in by_path if own.startswith(p + "_")), None)
        found.append((variable, match[1] if match else None, own[len(match[0]) + 1 :] if match else ""))
    return found


def _label_specs(model: Any, specs: Sequence[InputSpec], request: TargetRequest) -> list[InputSpec]:
    given = {s.name: tf.TensorSpec(s.shape, s.dtype) for s in specs}
    with _users_code(f"the Keras model '{model.name}' cannot be called with what its inputs say"):
        outputs = tf.function(lambda values: tf.nest.flatten(_call(model, values, specs, training=False))).get_concrete_function(given)
    dims = [tuple(o.shape.as_list()) for o in outputs.graph.outputs]
    if any(d is None for shape in dims for d in shape):
        raise CaptureError(f"the Keras model '{model.name}' has an output of unknown shape {dims}; fix its inputs with --shape")
    labels = []
    for i, shape in enumerate(dims):
        name = "label" if len(dims) == 1 else f"label_{i}"
        if request.loss in SPARSE_LOSSES:
            labels.append(InputSpec(name, shape[:-1], "int32", 0, max(shape[-1] - 1, 0), role="label"))
        else:
            labels.append(InputSpec(name, shape, "float32", 0.0, 1.0, role="label"))
    return labels


# --- SavedModel -------------------------------------------------------------------------------------------------------------------


def _from_saved_model(path: Path, request: TargetRequest) -> TargetProgram:
    if request.mode != "inference":
        raise CaptureError(f"{path} is a SavedModel, whose signatures are forward passes; add --mode inference")
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:  # whatever TensorFlow raises for a damaged or foreign folder
        raise CaptureError(f"{path} is not a SavedModel that TensorFlow can load: {one_line(error)[:300]}") from error
    name = request.signature or "serving_default"
    if name not in loaded.signatures:
        raise UnknownNameError(f"signature of {path}", name, loaded.signatures)
    signature = loaded.signatures[name]
    given = signature.structured_input_signature[1]
    _refuse_unknown_shapes(request, list(given))
    specs = [_input_spec(key, spec.shape, spec.dtype.name, request) for key, spec in sorted(given.items())]
    known = [KnownVariable(v, bool(v.trainable)) for v in signature.variables]
    return _program(signature, specs, request.seed, known, {}, f"SavedModel signature {name}", keep=loaded)


# --- file.py:callable ---------------------------------------------------------------------------------------------------------------


def _from_python(path: Path, attribute: str, request: TargetRequest) -> TargetProgram:
    if not path.is_file():
        raise CaptureError(f"{path} does not exist; give an existing file as file.py:callable")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CaptureError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    with _users_code(f"{path} does not import"):
        spec.loader.exec_module(module)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_") and callable(getattr(module, n))]
        raise UnknownNameError(f"callable in {path}", attribute, public)
    made = getattr(module, attribute)
    if not callable(made):
        raise CaptureError(f"{path}:{attribute} is a {type(made).__name__}; it must be a tf.function, or a function without arguments")
    if not (hasattr(made, "get_concrete_function") or _is_keras(made)):
        with _users_code(f"{path}:{attribute}() failed"):
            made = made()
    if _is_keras(made):
        return _from_keras(made, request, "Keras model from Python")
    function, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not callable(function):
        raise CaptureError(
            f"{path}:{attribute} gave a {type(made).__name__}; it must give a Keras model, a tf.function, or (step, example inputs)"
        )
    return _from_function(function, example, request)


@contextlib.contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Runs a user's own code: whatever it raises, and its leaving the program, becomes one `CaptureError`."""
    try:
        yield
    except (FathomError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        raise CaptureError(f"{what}: {type(error).__name__}: {one_line(error)[:400]}; no trace was written") from error


def _is_keras(value: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def _from_function(function: Any, example: Any, request: TargetRequest) -> TargetProgram:
    step: Any = function if hasattr(function, "get_concrete_function") else tf.function(function)
    if example is not None:
        is_sequence = isinstance(example, list | tuple)
        args, kwargs = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example) if is_sequence else (example,), {})
        with _users_code("the step cannot be traced for its example inputs"):
            tensors = [_tensor(a) for a in args]
            named = {k: _tensor(v) for k, v in kwargs.items()}
            concrete = step.get_concrete_function(*tensors, **named)
        flat = tf.nest.flatten((tensors, named), expand_composites=True)
        names = _placeholder_names(concrete)
        values = {n: t.numpy() for n, t in zip(names, flat, strict=True)}

        def same() -> Iterator[Values]:
            while True:
                yield values

        return TargetProgram(concrete, names, same(), roles={"loss": "loss", "logits": "logits"}, form="tf.function")
    signature = getattr(step, "input_signature", None)
    if signature is None:
        raise CaptureError("the tf.function has no input_signature and came without example inputs; return (tf.function, inputs)")
    flat = {s.name or f"input_{i}": s for i, s in enumerate(tf.nest.flatten(signature))}
    _refuse_unknown_shapes(request, list(flat))
    specs = [_input_spec(name, s.shape, s.dtype.name, request) for name, s in flat.items()]
    step = tf.function(step.python_function)  # without its signature, which would keep the dimensions free
    with _users_code("the tf.function cannot be traced for these shapes"):
        concrete = step.get_concrete_function(*(tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in specs))
    names = _placeholder_names(concrete)
    renamed = [InputSpec(n, s.shape, s.dtype, s.low, s.high) for n, s in zip(names, specs, strict=True)]
    return TargetProgram(concrete, names, draw(renamed, request.seed), roles={"loss": "loss", "logits": "logits"}, form="tf.function")


def _tensor(value: Any) -> Any:
    """A tensor of `value`; ragged and sparse tensors stay what they are."""
    return value if isinstance(value, tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(value)


def _placeholder_names(concrete: Any) -> list[str]:
    count = len(concrete.graph.inputs) - len(concrete.captured_inputs)
    return [p.op.name for p in concrete.graph.inputs[:count]]


# --- shapes -----------------------------------------------------------------------------------------------------------------------


def _input_spec(name: str, shape: Any, dtype: Any, request: TargetRequest) -> InputSpec:
    dims = list(tf.TensorShape(shape).as_list()) if tf.TensorShape(shape).rank is not None else None
    if name in request.shapes:
        given = list(request.shapes[name])
        if dims is not None and (len(dims) != len(given) or any(d is not None and d != g for d, g in zip(dims, given, strict=True))):
            raise CaptureError(f"--shape {name}={','.join(map(str, given))} does not fit the input's own shape {_shown(dims)}")
        dims = given
    elif dims is not None and dims and dims[0] is None and request.batch_size:
        dims[0] = request.batch_size
    if dims is None or None in dims:
        raise CaptureError(
            f"input '{name}' has shape {_shown(dims)}, whose free dimensions must be fixed;"
            f" give --shape {name}={_example(dims)}" + ("" if request.batch_size else " (or --batch-size for the first)")
        )
    text = tf.dtypes.as_dtype(dtype).name
    return InputSpec(name, tuple(dims), text, 0, 1)


def _shown(dims: Sequence[int | None] | None) -> str:
    return "unknown" if dims is None else "[" + ",".join("?" if d is None else str(d) for d in dims) + "]"


def _example(dims: Sequence[int | None] | None) -> str:
    return ",".join(str(d or 8) for d in dims) if dims else "8,8"


def _refuse_unknown_shapes(request: TargetRequest, names: Sequence[str]) -> None:
    for name in request.shapes:
        if name not in names:
            raise UnknownNameError("input", name, names)


def _program(
    step: Callable[..., Any],
    specs: Sequence[InputSpec],
    seed: int,
    known: Sequence[KnownVariable],
    roles: Mapping[str, str],
    form: str,
    keep: Any = None,
) -> TargetProgram:
    named = {f"x{i}": s for i, s in enumerate(specs)}
    names = {s.name: key for key, s in named.items()}

    def call(**values: Any) -> Any:
        return step(**{s.name: values[names[s.name]] for s in specs})

    types = {k: tf.TensorSpec(s.shape, s.dtype, name=k) for k, s in named.items()}
    if hasattr(step, "captured_inputs") and is_written_out(step):
        concrete = copied(step, [types[key] for key in sorted(types)], {key: s.name for key, s in named.items()})
    else:
        with _users_code("the program cannot be traced for these shapes"):
            concrete = tf.function(call).get_concrete_function(**types)
    concrete.kept = keep  # a SavedModel's variables live as long as the object that loaded it
    order = [named[key].name for key in sorted(named)]
    all_roles = {**roles, **{s.name: s.role for s in specs}}
    return TargetProgram(concrete, order, draw(specs, seed), known, all_roles, form)
