"""Do imports only point down, without cycles, and does everything but capturing work where TensorFlow cannot be imported?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest
from without_tensorflow import run_without_tensorflow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fathom_trace"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "units", "tables", "untrusted", "generated"),
    ("trace", "effects", "builder", "losses", "checks", "options"),
    ("registry",),
    (
        "ops",
        "scopes",
        "node_graph",
        "recomputed",
        "phases",
        "layers",
        "cost_rules",
        "costs",
        "loops",
        "accesses",
        "addresses",
        "request_text",
        "memory_traces",
        "profile",
        "rewrites",
        "memory",
        "workload",
        "parameters",
        "data",
        "placing",
        "ending",
        "exporter",
        "wire",
        "wire_columns",
        "digits",
        "lanes",
        "layer_map",
        "gradients",
        "steps",
    ),
    ("store", "whatif", "selecting", "report", "capture", "workloads", "exporters"),
    (
        "destination",
        "terminal",
        "sweeps",
        "arguments",
        "summary",
        "exporting",
        "commands",
        "cli",
        "__main__",
        "__init__",
    ),
)
"""From the bottom to the top. A module may import its own layer and those below; a package is one entry."""

WITH_TENSORFLOW = ("fathom_trace.capture", "fathom_trace.workloads")


def modules() -> dict[str, Path]:
    """Every module of the package, plug-ins under the names that they are imported by."""
    found = {}
    for folder in (PACKAGE, ROOT / "workloads", ROOT / "exporters"):
        base = PACKAGE.parent if folder == PACKAGE else PACKAGE
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(PACKAGE.parent).parts if folder == PACKAGE else (base.name, folder.name, path.name)
            name = ".".join(parts).removesuffix(".py")
            found[name.removesuffix(".__init__") if name != "fathom_trace.__init__" else name] = path
    return found


def imports(source: str, module: str, is_package: bool, at_once: bool = False) -> Iterator[str]:
    """Dotted names that a module imports, also (unless `at_once`) inside functions; `from a import b` gives `a.b`."""
    package = module if is_package else module.rpartition(".")[0]
    tree = ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] if at_once else []
    later = {n for function in functions for n in ast.walk(function)}
    for node in ast.walk(tree):
        if node in later:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))


def edges(sources: dict[str, tuple[str, bool]], lazy_packages: bool = False) -> set[tuple[str, str]]:
    """(importer, imported) among the given modules. `__version__` is a constant that every layer may read.

    With `lazy_packages`, what a package's `__init__` imports inside functions does not count: it may offer what its modules have.
    """
    found = set()
    for module, (source, is_package) in sources.items():
        for name in imports(source, module, is_package, at_once=lazy_packages and is_package):
            if name == "fathom_trace.__version__":
                continue
            target = name
            while target and target not in sources:
                target = target.rpartition(".")[0]
            if name == "fathom_trace" or (not target and name.startswith("fathom_trace.")):
                target = "fathom_trace.__init__"
            if target and target != module:
                found.add((module, target))
    return found


def layer(module: str) -> int:
    """The layer that a module belongs to."""
    [found] = [k for k, names in enumerate(LAYERS) if module.split(".")[1] in names]
    return found


def upward(found: set[tuple[str, str]]) -> list[str]:
    return sorted(f"{a} -> {b}" for a, b in found if layer(b) > layer(a))


def between_plugins(found: set[tuple[str, str]]) -> list[str]:
    def is_plugin(module: str) -> bool:
        return module.split(".")[1] in ("workloads", "exporters") and module.count(".") == 2

    return sorted(f"{a} -> {b}" for a, b in found if is_plugin(a) and is_plugin(b))


def cycles(found: set[tuple[str, str]]) -> list[list[str]]:
    """Groups of modules that import each other."""
    return [sorted(c) for c in networkx.strongly_connected_components(networkx.DiGraph(found)) if len(c) > 1]


@pytest.fixture(scope="module")
def sources() -> dict[str, tuple[str, bool]]:
    return {name: (path.read_text(encoding="utf-8"), path.name == "__init__.py") for name, path in modules().items()}


def test_every_module_has_a_layer(sources: dict[str, tuple[str, bool]]) -> None:
    known = {name for names in LAYERS for name in names}
    assert {name.split(".")[1] for name in sources} <= known


def test_imports_point_down(sources: dict[str, tuple[str, bool]]) -> None:
    found = edges(sources)
    assert len(found) > 30
    assert upward(found) == []


def test_there_are_no_import_cycles(sources: dict[str, tuple[str, bool]]) -> None:
    assert cycles(edges(sources, lazy_packages=True)) == []


def test_plugins_do_not_import_each_other(sources: dict[str, tuple[str, bool]]) -> None:
    assert between_plugins(edges(sources)) == []


def test_tensorflow_is_imported_by_capture_and_workloads_only(sources: dict[str, tuple[str, bool]]) -> None:
    users = {
        m
        for m, (text, package) in sources.items()
        if any(n.split(".")[0] in ("tensorflow", "keras") for n in imports(text, m, package))
    }
    assert [m for m in users if not m.startswith(WITH_TENSORFLOW)] == []


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("fathom_trace.trace", "def f():\n    from fathom_trace.store import load", "fathom_trace.trace -> fathom_trace.store"),
        ("fathom_trace.trace", "import fathom_trace.costs as c", "fathom_trace.trace -> fathom_trace.costs"),
        ("fathom_trace.store", "from fathom_trace import cli", "fathom_trace.store -> fathom_trace.cli"),
        ("fathom_trace.store", "from . import load", "fathom_trace.store -> fathom_trace.__init__"),
        (
            "fathom_trace.store",
            "import importlib\nimportlib.import_module('fathom_trace.cli')",
            "fathom_trace.store -> fathom_trace.cli",
        ),
    ],
)
def test_an_upward_import_is_seen(module: str, text: str, problem: str) -> None:
    names = ("trace", "costs", "store", "cli", "__init__")
    made = {f"fathom_trace.{n}": ("", False) for n in names} | {module: (text, False)}
    assert upward(edges(made)) == [problem]


def test_a_cycle_and_a_plugin_that_imports_another_are_seen() -> None:
    made = {
        "fathom_trace.exporters.a": ("from fathom_trace.exporters.b import write", False),
        "fathom_trace.exporters.b": ("from fathom_trace.exporters import a", False),
        "fathom_trace.exporters": ("", True),
    }
    assert cycles(edges(made)) == [["fathom_trace.exporters.a", "fathom_trace.exporters.b"]]
    assert len(between_plugins(edges(made))) == 2


def test_everything_but_capture_imports_where_tensorflow_raises() -> None:
    offline = [m for m in modules() if not m.startswith(("fathom_trace.capture", "fathom_trace.workloads."))]
    offline = [m for m in offline if not m.endswith(("__init__", "__main__"))]
    code = f"import importlib\nfor m in {offline!r}: importlib.import_module(m)\nprint('imported', len({offline!r}))"
    done = run_without_tensorflow(code)
    assert done.stdout.strip() == f"imported {len(offline)}", done.stderr
