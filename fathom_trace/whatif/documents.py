"""Reads the YAML of scenario files and hardware descriptions: only mappings, lists and text, from small files.

Every scalar stays the text that was written, so `10`, `1e3`, `off` and `50us` mean what they say and no type is guessed. Aliases are
refused, for with them a small file can stand for an endless one; so are tags, keys given twice, and several documents in one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fathom_trace.errors import ScenarioError, one_line

MOST_BYTES = 1_000_000
MOST_DEPTH = 16

Document = dict[str, Any] | list[Any] | str
"""Mappings and lists of the same, and text."""


def read_document(path: Path) -> Document:
    """What a YAML file says.

    Raises:
        ScenarioError: it cannot be read, is no YAML, too large or too deep, or uses what is refused; names the file and the line.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # of a name with a zero byte, or that the system cannot spell
        raise ScenarioError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); give a YAML file") from None
    if len(raw) > MOST_BYTES:
        raise ScenarioError(f"{path} is larger than {MOST_BYTES:,} bytes; split it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path} is not UTF-8 (byte {error.start}); give a YAML file") from None
    return _Reader(path).read(text)


class _Reader:
    """Builds the document event by event, without recursion."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open: list[tuple[Any, list[str]]] = []
        self.root: list[Document] = []

    def read(self, text: str) -> Document:
        import yaml

        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                self._take(event, yaml)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f":{mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
            raise ScenarioError(f"{self.path}{where} is no YAML: {one_line(problem)}") from None
        except (ValueError, OverflowError) as error:  # PyYAML's own, on escapes beyond Unicode and the like
            raise ScenarioError(f"{self.path} is no YAML: {one_line(error)}") from None
        if not self.root:
            raise ScenarioError(f"{self.path} is empty; see the help for what it may hold")
        return self.root[0]

    def _take(self, event: Any, yaml: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            # `*name` without quotes is an alias in YAML, and here more likely meant as a pattern.
            raise self._error(event, f"'*{event.anchor}' is an alias, and aliases are refused; quote what begins with *")
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            if getattr(event, "anchor", None):
                raise self._error(event, f"'&{event.anchor}' is an anchor, and aliases are refused; write it out")
            if event.tag is not None and event.tag != "!":
                raise self._error(event, f"the tag '{one_line(event.tag)}' is refused; write plain text")
        if isinstance(event, yaml.DocumentStartEvent) and self.root:
            raise self._error(event, "a second document begins; a file holds one")
        if isinstance(event, yaml.ScalarEvent):
            if any("\ud800" <= sign <= "\udfff" for sign in event.value):
                raise self._error(event, "an escape stands for half a character")
            self._add(event, event.value)
        elif isinstance(event, yaml.MappingStartEvent):
            self._enter(event, {})
        elif isinstance(event, yaml.SequenceStartEvent):
            self._enter(event, [])
        elif isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()

    def _enter(self, event: Any, made: dict[str, Any] | list[Any]) -> None:
        if len(self.open) >= MOST_DEPTH:
            raise self._error(event, f"it is nested more than {MOST_DEPTH} deep")
        self._add(event, made)
        self.open.append((made, []))

    def _add(self, event: Any, value: Document) -> None:
        if not self.open:
            self.root.append(value)
            return
        holder, key = self.open[-1]
        if isinstance(holder, list):
            holder.append(value)
        elif key:
            holder[key.pop()] = value
        elif not isinstance(value, str):
            raise self._error(event, "a key is no text")
        elif value in holder:
            raise self._error(event, f"the key '{one_line(value)}' is given twice")
        else:
            key.append(value)

    def _error(self, event: Any, message: str) -> ScenarioError:
        return ScenarioError(f"{self.path}:{event.start_mark.line + 1}: {message}")
