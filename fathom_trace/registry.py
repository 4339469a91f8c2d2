"""Plug-ins are registered by existing: a file in the plug-in folder is a plug-in, its name is the file's, its summary the first line
of its docstring. Listing reads the files with `ast` and imports nothing; loading imports one file and checks it against its contract.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fathom_trace.errors import FathomError, UnknownNameError, one_line


@dataclass(frozen=True)
class Registry:
    """The plug-ins of one kind. `package` is the import package, `required` the names that each file must define."""

    kind: str
    package: str
    folders: tuple[str, ...]
    required: tuple[str, ...]

    def files(self) -> dict[str, Path]:
        """Plug-in name to file, by name."""
        found: dict[str, Path] = {}
        for folder in self.folders:
            for path in sorted(Path(folder).glob("*.py")):
                if not path.name.startswith("_"):
                    found.setdefault(path.stem, path)
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """All plug-in names."""
        return list(self.files())

    def summaries(self) -> dict[str, str]:
        """Name to the first line of the file's docstring; a file that does not parse says so in its place."""
        return {name: _summary(path) for name, path in self.files().items()}

    def resolve(self, name: str) -> str:
        """The plug-in that a user calls `name`; `-` and `_` are the same.

        Raises:
            UnknownNameError: none is; offers the nearest.
        """
        key = name.replace("-", "_")
        if key not in self.files():
            raise UnknownNameError(self.kind, name, self.names())
        return key

    def load(self, name: str) -> ModuleType:
        """Import one plug-in.

        Raises:
            UnknownNameError: there is none of that name.
            FathomError: the file lacks a part of its contract.
        """
        key = self.resolve(name)
        module = importlib.import_module(f"{self.package}.{key}")
        missing = [part for part in self.required if not hasattr(module, part)]
        if missing:
            contract = f"{self.package.removesuffix('s').replace('.', '/')}.py"
            raise FathomError(f"{self.kind} '{key}' ({module.__file__}) lacks {', '.join(missing)}; see {contract}")
        return module


def plugin_path(package_file: str, own: Iterable[str]) -> list[str]:
    """`__path__` for a plug-in package: its own folder and, in a checkout, the top-level folder of the same name.

    A checkout is recognised by `pyproject.toml` two levels above the package; in a wheel the files lie in the package itself.
    """
    package = Path(package_file).parent
    root = package.parent.parent
    folders = list(own)
    if (root / "pyproject.toml").is_file() and (root / package.name).is_dir():
        folders.append(str(root / package.name))
    return folders


def _summary(path: Path) -> str:
    try:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (SyntaxError, ValueError, OSError) as error:
        return f"(unreadable: {one_line(error)})"
    return text.splitlines()[0].rstrip(".") if text else "(no docstring)"
