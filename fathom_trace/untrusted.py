"""Reads files, JSON and YAML that others wrote, such as simulators' results: whatever they are, a value of bounded size or one error.

Text may be nested deeper than Python recurses, hold numbers with more digits than it converts, and in YAML stand for far more than it says:
by aliases of aliases, by merged mappings, or without end by an alias of itself. What users write is read by `whatif.documents`, which takes
less.
"""

from __future__ import annotations

import errno
import json
import os
import reprlib
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from fathom_trace.errors import one_line

MOST_VALUES = 2_000_000
"""Of one YAML text, with every alias written out."""

MOST_BYTES, MOST_MESSAGE_BYTES = 256 << 20, 2 << 30
"""Of a text that is read whole; and of one message, as protobuf has it, or of an export's `export.json`, which tells of every execution."""

_brief = reprlib.Repr()
_MOST_SHOWN = 120
_brief.maxstring = _brief.maxother = _MOST_SHOWN
_brief.maxlevel = 2


def read_json(text: str | bytes, with_nan: bool = True) -> Any:
    """What JSON says; NaN and infinities, which are none of JSON's, only `with_nan`.

    Raises:
        ValueError: it is none, or too deep; the message is one line.
    """
    try:
        return json.loads(text) if with_nan else json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_yaml(text: str) -> Any:
    """What YAML says, by the safe loader: no object is made but what JSON has, dates and sets.

    Raises:
        ValueError: it is none, is nested too deep, merges mappings (`<<`), or its aliases stand for more than `MOST_VALUES` or for
            themselves; the message is one line.
    """
    import yaml

    try:
        content = yaml.load(text, Loader=_loader())  # noqa: S506 (made of a safe loader)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except yaml.YAMLError as error:
        raise ValueError(one_line(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # PyYAML's own, on dates and numbers that are none
        raise ValueError(one_line(f"{type(error).__name__}: {error}")) from None
    _refuse_bomb(content)
    return content


class NotRegularError(OSError):
    """A pipe, a device or the like, which may never end."""


class TooLargeError(OSError):
    """A file that is larger than its kind can be."""


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file that others wrote.

    Raises:
        OSError: it cannot be read; `NotRegularError`, `TooLargeError`: or will not be.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularError(errno.EINVAL, "it is no regular file", str(path))
    if found.st_size > most:
        raise TooLargeError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return path.read_bytes()


def read_regular_text(path: Path, encoding: str) -> str:
    """The text of a file that others wrote, with line ends as Python has them.

    Raises:
        OSError, UnicodeDecodeError: as `read_regular`, and where it is none.
    """
    return read_regular(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def brief(value: object) -> str:
    """`value` for a message: however large it is, of some hundred characters. Text is shown as it is."""
    if isinstance(value, str):
        return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."
    try:
        return _brief.repr(value)
    except ValueError:  # whole numbers of thousands of digits
        return f"a {type(value).__name__} that is not shown"


def whole_number(text: str, least: int, most: int) -> int | None:
    """The number that some decimal digits (0 to 9) are; None for anything else, and for numbers outside `least` to `most`."""
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdecimal() and len(digits) <= len(str(most))):
        return None
    number = int(digits or "0")
    return number if least <= number <= most else None


def is_inside(name: str) -> bool:
    """Whether a file's name that others wrote stays in the folder that it is meant for."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and name.isprintable()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@cache
def _loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """A safe loader that merges nothing: a mapping merged from merged ones grows with every level."""

        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise yaml.constructor.ConstructorError(None, None, "mappings are not merged (<<) here", node.start_mark)

    return Loader


def _refuse_bomb(content: object) -> None:
    """What is shared through aliases is counted as often as it stands there."""
    sizes: dict[int, int] = {}
    stack: list[tuple[object, Iterator[object]]] = [(content, _parts(content))]
    around = {id(content)}
    while stack:
        value, parts = stack[-1]
        for part in parts:
            if not isinstance(part, (list, dict, tuple, set)) or id(part) in sizes:
                continue
            if id(part) in around:
                raise ValueError("an alias stands for what holds it")
            around.add(id(part))
            stack.append((part, _parts(part)))
            break
        else:
            stack.pop()
            around.discard(id(value))
            total = 1 + sum(sizes.get(id(part), 1) for part in _parts(value))
            if total > MOST_VALUES:
                raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
            sizes[id(value)] = total


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
