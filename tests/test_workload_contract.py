"""Does every file in `workloads/` keep the contract? Parametrised by the registry: a new workload is tested by existing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from without_tensorflow import run_without_tensorflow

from fathom_trace.errors import DataError
from fathom_trace.options import apply_settings, describe_options
from fathom_trace.tables import ROLES
from fathom_trace.workload import DEFAULT_PRESET, MODES, Program, Values, synthetic_inputs
from fathom_trace.workloads import REGISTRY

PRESETS = {DEFAULT_PRESET, "paper", "tiny"}
NOT_LIFTED = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "IteratorGetNext", "LookupTableFindV2")
GRAPH_BYTES = 4_000_000
"""Far more than any graph without parameter values takes, and less than the parameters of a small layer."""


@pytest.fixture(params=REGISTRY.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def workload(name: str) -> Any:
    return REGISTRY.load(name)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def take(workload: Any, mode: str, count: int, seed: int = 0) -> list[Values]:
    """The first synthetic inputs of preset tiny."""
    tiny = workload.PRESETS["tiny"]
    batches = synthetic_inputs(workload, tiny.options, mode, tiny.batch_size[mode], seed)
    return [next(batches) for _ in range(count)]


def build(workload: Any, mode: str, seed: int) -> Program:
    tiny = workload.PRESETS["tiny"]
    program: Program = workload.build(tiny.options, mode, tiny.batch_size[mode], seed)
    return program


@functools.cache
def built(name: str, mode: str) -> Program:
    """Preset tiny, built once for all tests that ask something which earlier steps do not change."""
    return build(REGISTRY.load(name), mode, seed=0)


def as_function(step: Callable[..., Any]) -> Any:
    import tensorflow as tf

    return step if hasattr(step, "get_concrete_function") else tf.function(step)


def run(program: Program, batches: list[Values]) -> list[dict[str, np.ndarray]]:
    """The outputs of a step on each batch, one after the other."""
    import tensorflow as tf

    step = as_function(program.step)
    results = [step(**{key: tf.constant(value) for key, value in batch.items()}) for batch in batches]
    return [{key: np.asarray(value) for key, value in result.items()} for result in results]


def snapshot(variables: Any) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def test_it_says_what_it_is(workload: Any) -> None:
    first, *rest = workload.__doc__.strip().splitlines()
    assert first.endswith(".")
    assert len(first) <= 100
    assert "step" in " ".join(rest), "the docstring says what a step is"
    assert workload.CITATION.strip()
    assert workload.DATA_FORMAT.strip()


def test_every_option_is_documented_and_can_be_set_from_text(name: str, workload: Any) -> None:
    assert is_dataclass(workload.Options)
    assert workload.Options.__dataclass_params__.frozen
    assert [f.name for f in fields(workload.Options) if not f.metadata.get("doc")] == []
    for preset in workload.PRESETS.values():
        texts = {option.name: option.default for option in describe_options(preset.options)}
        assert apply_settings(workload.Options(), texts, name) == preset.options


def test_presets_are_complete(workload: Any) -> None:
    assert set(workload.PRESETS) >= PRESETS
    for preset in workload.PRESETS.values():
        assert isinstance(preset.options, workload.Options)
        assert set(preset.batch_size) == set(MODES)
        assert min(preset.batch_size.values()) >= 1
        assert preset.parameters > 0
        assert preset.doc


def test_inputs_are_specified(workload: Any, mode: str) -> None:
    for preset in workload.PRESETS.values():
        specs = workload.inputs(preset.options, mode, preset.batch_size[mode])
        assert len({s.name for s in specs}) == len(specs) > 0
        for spec in specs:
            assert spec.name.isidentifier()
            assert min(spec.shape, default=1) >= 1
            assert np.dtype(spec.dtype).kind in "fiub"
            assert spec.low <= spec.high
            assert spec.role in {"input", "label", "state"}


def test_synthetic_inputs_are_what_the_specification_says(workload: Any, mode: str) -> None:
    tiny = workload.PRESETS["tiny"]
    specs = {s.name: s for s in workload.inputs(tiny.options, mode, tiny.batch_size[mode])}
    for batch in take(workload, mode, 3):
        assert batch.keys() == specs.keys()
        for key, value in batch.items():
            assert (value.shape, value.dtype) == (specs[key].shape, np.dtype(specs[key].dtype))
            assert specs[key].low <= value.min()
            assert value.max() <= specs[key].high


def test_synthetic_inputs_repeat_with_the_seed_and_differ_within_it(workload: Any, mode: str) -> None:
    def same(first: Values, second: Values) -> bool:
        return all(np.array_equal(first[key], second[key]) for key in first)

    first, second = take(workload, mode, 2), take(workload, mode, 2)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert not same(first[0], first[1])
    other = take(workload, mode, 4, seed=1)
    assert not all(same(a, b) for a, b in zip(take(workload, mode, 4), other, strict=True))


def test_a_folder_that_is_not_there_is_named(workload: Any, mode: str, tmp_path: Path) -> None:
    tiny = workload.PRESETS["tiny"]
    with pytest.raises(DataError, match="nowhere"):
        next(workload.read_data(tmp_path / "nowhere", tiny.options, mode, tiny.batch_size[mode], 0))


def test_presets_and_inputs_are_known_without_tensorflow(name: str) -> None:
    code = (
        "from fathom_trace.workloads import REGISTRY\n"
        f"w = REGISTRY.load({name!r})\n"
        "print([len(w.inputs(p.options, m, p.batch_size[m])) > 0 for p in w.PRESETS.values() for m in p.batch_size])"
    )
    done = run_without_tensorflow(code)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.strip(" []\n").split(", ")) == {"True"}


@pytest.mark.capture
def test_parameters_are_as_many_as_the_preset_says(name: str, workload: Any, mode: str) -> None:
    program = built(name, mode)
    assert sum(int(np.prod(v.shape)) for v in program.trainable) == workload.PRESETS["tiny"].parameters


@pytest.mark.capture
def test_variables_are_named_and_each_has_one_part(name: str, mode: str) -> None:
    program = built(name, mode)
    everything = [*program.trainable, *(slot.variable for slot in program.slots), *program.state]
    assert len({id(v) for v in everything}) == len(everything)
    names = [v.name for v in everything]
    assert len(set(names)) == len(names)
    assert [n for n in names if n.startswith("Variable")] == []
    owners = {id(v) for v in program.trainable}
    assert all(id(slot.of) in owners and slot.name for slot in program.slots)


@pytest.mark.capture
def test_a_step_gives_finite_named_outputs_and_training_a_loss(name: str, workload: Any, mode: str) -> None:
    program = built(name, mode)
    assert set(program.roles.values()) <= set(ROLES)
    [outputs] = run(program, take(workload, mode, 1))
    assert set(program.roles) <= set(outputs)
    assert [key for key, value in outputs.items() if not np.all(np.isfinite(value))] == []
    if mode == "training":
        assert outputs["loss"].shape == ()


@pytest.mark.capture
def test_steps_repeat_with_the_seed(workload: Any, mode: str) -> None:
    """Threads may add in another order, so that equal means to a part in 10,000."""

    def results(seed: int) -> np.ndarray:
        outputs = run(build(workload, mode, seed), take(workload, mode, 2, seed))
        return np.concatenate([np.ravel(value).astype(float) for output in outputs for _, value in sorted(output.items())])

    first = results(seed=1)
    np.testing.assert_allclose(results(seed=1), first, rtol=1e-4, atol=1e-6)
    assert not np.allclose(results(seed=2), first, rtol=1e-4, atol=1e-6)


@pytest.mark.capture
def test_training_moves_every_trainable_variable(name: str, workload: Any) -> None:
    program = built(name, "training")
    before = snapshot(program.trainable)
    run(program, take(workload, "training", 3))
    after = snapshot(program.trainable)
    unmoved = [v.name for v, a, b in zip(program.trainable, before, after, strict=True) if np.array_equal(a, b)]
    assert unmoved == []


@pytest.mark.capture
def test_inference_moves_no_trainable_variable(name: str, workload: Any) -> None:
    program = built(name, "inference")
    before = snapshot(program.trainable)
    run(program, take(workload, "inference", 2))
    assert all(np.array_equal(a, b) for a, b in zip(before, snapshot(program.trainable), strict=True))


@pytest.mark.capture
def test_the_graph_can_be_lifted_and_its_layers_have_names(name: str, workload: Any, mode: str) -> None:
    """No Python inside, no parameter values inside, and no convolution or matrix product outside a name scope."""
    import tensorflow as tf

    tiny = workload.PRESETS["tiny"]
    specs = workload.inputs(tiny.options, mode, tiny.batch_size[mode])
    program = built(name, mode)
    concrete = as_function(program.step).get_concrete_function(**{s.name: tf.TensorSpec(s.shape, s.dtype, name=s.name) for s in specs})
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    assert [node.name for node in nodes if node.op in NOT_LIFTED] == []
    assert definition.ByteSize() < GRAPH_BYTES
    layers = [node.name for node in definition.node if node.op.startswith(("Conv", "MatMul", "BatchMatMul"))]
    assert [layer for layer in layers if "/" not in layer] == []
