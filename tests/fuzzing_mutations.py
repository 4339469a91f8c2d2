"""Mutators: what they are given comes back damaged, at random, in ways that parsers are known to stumble over.

Bytes are cut, flipped, repeated, spliced; text is changed token by token; JSON, YAML and protobuf also by their structure, HDF5 through
its own library, so that what is changed is well-formed otherwise and gets past the first look. Checksums are for the caller to mend.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import re
import struct
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

from fathom_trace.wire import varint

MOST_SIZE = 250_000
"""Of what comes back: readers are to be quick with inputs of some kB, and may take their time with those of some MB."""

INTEGERS = (
    -1, 0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 100, 127, 128, 255, 256, 1000, 4096, 32767, 32768, 65535, 65536, 10**6, 2**24,
    2**31 - 1, 2**31,
    2**32 - 1, 2**32, 10**10, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -2, -128, -(2**31), -(2**63),
)  # fmt: skip
NUMBERS = (
    "0", "-0", "-1", "1", "2", "3", "1e999", "-1e999", "1e-999", "1e308", "5e-324", "NaN", "nan", "inf", "-inf", "Infinity", "-Infinity",
    "0x10", "0b1", "0o7", "010", "1_000", "1.", "1.5", ".5", "1e3", "+1", " 1", "1 ", "1,000", "٣", "²", "½", "\uff11", "9" * 20, "9" * 400,
    "9" * 5000, "0" * 60 + "1", "1e", "--1", "1e+", "true", "null", "~", "None", "2147483648", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "1e22", "1e-7", "50us", "10x", "1:30",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\n", "\r", "\r\n", "\t", "\x0b", "\x0c", "\x1b[31m", "\x1c", "\x7f", "\x85", "\xa0", "\u200b", "\u202e",
    "\u2028", "\ufeff",
    "é", "e\u0301", "日本", "🙂", "../x", "../../etc/passwd", "/etc/passwd", "..", ".", "a/../b", "C:\\x", "a" * 300, "x" * 5000, "%s%n",
    "{0}", "${x}", "'", '"', "'\"", "]]>", "<!--", "&amp;", "&x;", "*", "[", "]", "{", "}", "(", ")", ",", ";", "=", ":", "- ",
    "#", "|", ">",
    "!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!x", "&a ", "*a", "<<: ", "? ", "%YAML 9.9\n", "---\n", "...\n",
    "- - - - ", "\n  ", "\n- ", ": ", "@", "`", "\\", "\\u0000", "\\ud800", "DP", "nul", "-", "--", "==", "..", ":5", "*?[",
    "op", "kind:", "layer:",
)  # fmt: skip
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|\w+|\s+|.", re.DOTALL)
_NESTED = ("[" * 40, "{" * 40, "[" * 3000, '{"a":' * 3000, "(" * 3000, "- " * 3000, "[" * 200_000, "{a: " * 500, "!" * 50, "&a [*a]")


# --- bytes --------------------------------------------------------------------------------------------------------------------------------


def mutate_bytes(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to a few changes to some bytes."""
    made = bytearray(data)
    for _ in range(1 + min(int(random.expovariate(0.8)), 8)):
        _change_bytes(random, made, others)
        del made[MOST_SIZE:]
    return bytes(made)


def _change_bytes(random: Random, made: bytearray, others: Sequence[bytes]) -> None:
    size = len(made)
    at = random.randrange(size) if size else 0
    match random.randrange(13) if size else 8:
        case 0 | 1:
            made[at] ^= 1 << random.randrange(8)
        case 2:
            made[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        case 3:
            del made[at : at + _span(random, size)]
        case 4:
            del made[at:]
        case 5:
            span = made[at : at + _span(random, size)]
            made[at:at] = span * min(random.choice((1, 2, 50)), MOST_SIZE // len(span))
        case 6 | 7:
            width = random.choice((1, 2, 4, 8))
            value = random.choice(INTEGERS) % (1 << 8 * width)
            made[at : at + width] = value.to_bytes(width, random.choice(("little", "big")))
        case 8:
            made[at:at] = random.choice((random.randbytes(random.randrange(1, 9)), bytes(random.randrange(1, 200)), b"\xff" * 40))
        case 9:
            made[at:at] = random.choice(TEXTS + NUMBERS).encode("utf-8", "surrogatepass")
        case 10:
            to, length = random.randrange(size), _span(random, size)
            made[to : to + length] = made[at : at + length]
        case 11:
            other = random.choice(others) if others else bytes(made)
            cut = random.randrange(len(other)) if other else 0
            made[at : at + _span(random, size)] = other[cut : cut + _span(random, len(other))]
        case _:
            made[at : at + 1] = bytes([made[at]]) * random.choice((2, 3, 100, 3000))


def _span(random: Random, size: int) -> int:
    return random.choice((1, 1, 2, 4, 8, 16, 1 + random.randrange(max(1, size))))


# --- text ---------------------------------------------------------------------------------------------------------------------------------


def mutate_text(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Changes to text, token by token and line by line; now and then to its encoding or bytes."""
    kind = random.random()
    if kind < 0.15:
        return mutate_bytes(random, data, others)
    text = data.decode("utf-8", "replace")
    for _ in range(1 + min(int(random.expovariate(0.7)), 8)):
        text = (_change_lines(random, text, others) if random.random() < 0.35 else _change_tokens(random, text))[:MOST_SIZE]
    if kind < 0.17:
        return text.encode(random.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "utf-7", "cp037")), "replace")
    return text.encode("utf-8", "replace")


def _change_tokens(random: Random, text: str) -> str:
    tokens = _TOKEN.findall(text)
    if not tokens:
        return random.choice(TEXTS + NUMBERS)
    at = random.randrange(len(tokens))
    match random.randrange(9):
        case 0 | 1:
            numbers = [i for i, token in enumerate(tokens) if token[0].isdigit()]
            if numbers:
                tokens[random.choice(numbers)] = random.choice(NUMBERS) if random.random() < 0.7 else str(random.choice(INTEGERS))
        case 2:
            tokens[at] = random.choice(TEXTS)
        case 3:
            tokens[at] = random.choice(NUMBERS)
        case 4:
            tokens.insert(at, random.choice(TEXTS))
        case 5:
            del tokens[at]
        case 6:
            other = random.randrange(len(tokens))
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 7:
            tokens[at] = tokens[random.randrange(len(tokens))]
        case _:
            tokens[at] *= min(random.choice((2, 3, 2000)), MOST_SIZE // len(tokens[at]))
    return "".join(tokens)


def _change_lines(random: Random, text: str, others: Sequence[bytes]) -> str:
    lines = text.split("\n")
    at = random.randrange(len(lines))
    match random.randrange(9):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[random.randrange(len(lines))])
        case 2:
            lines[at] = " " * random.choice((1, 2, 4, 60)) + lines[at]
        case 3:
            other = random.choice(others).decode("utf-8", "replace").split("\n") if others else lines
            lines.insert(at, random.choice(other))
        case 4:
            lines[at] = random.choice(_NESTED) + lines[at]
        case 5:
            lines[at] *= min(random.choice((2, 500)), MOST_SIZE // (len(lines[at]) + 1))
        case 6:
            other_at = random.randrange(len(lines))
            lines[at], lines[other_at] = lines[other_at], lines[at]
        case 7:
            del lines[at:]
        case _:
            return random.choice(("\r\n", "\r", "\u2028", " ", "")).join(lines)
    return "\n".join(lines)


# --- JSON and YAML ------------------------------------------------------------------------------------------------------------------------

_RAW = "@raw@"
_RAW_VALUES = (*NUMBERS[:60], "[" * 3000, '{"a":' * 3000, "[" * 100_000 + "]" * 100_000, '"\\ud800"', '"\t"', "NaN", "tru", "")


def mutate_json(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Changes to JSON: mostly values, keys and items of other kinds and sizes, else as of text."""
    if random.random() < 0.25:
        return mutate_text(random, data, others)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_text(random, data, others)
    for _ in range(1 + min(int(random.expovariate(0.9)), 6)):
        tree = mutate_tree(random, tree)
    try:
        text = json.dumps(tree, ensure_ascii=random.random() < 0.7)
    except (ValueError, RecursionError):
        return mutate_text(random, data, others)
    while f'"{_RAW}"' in text:
        text = text.replace(f'"{_RAW}"', random.choice(_RAW_VALUES), 1)
    return text.encode("utf-8", "surrogatepass" if random.random() < 0.5 else "replace")


def mutate_tree(random: Random, tree: Any) -> Any:
    """One change somewhere in lists and mappings; they are changed in place, the tree is returned."""
    if not isinstance(tree, (dict, list)) or not tree or random.random() < 0.02:
        return _other_value(random, tree)
    holder = tree
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = random.choice(keys)
        value = holder[key]
        if isinstance(value, (dict, list)) and value and random.random() < 0.85:
            holder = value
            continue
        break
    match random.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, value if random.random() < 0.5 else _other_value(random, value))
        case 1:
            holder[random.choice(TEXTS)] = value
        case 2 if isinstance(holder, list):
            random.shuffle(holder)
        case 2:
            other = random.choice(keys)
            holder[key], holder[other] = holder[other], holder[key]
        case 3 if isinstance(holder, list):
            holder *= random.choice((0, 2, 3)) if len(holder) < 1000 else 0
        case _:
            holder[key] = _other_value(random, value)
    return tree


def _other_value(random: Random, value: Any) -> Any:
    choice = random.random()
    if isinstance(value, bool) or value is None:
        choice = 0.3 + choice / 2
    if choice < 0.45 and isinstance(value, (int, float)):
        number = random.choice((*INTEGERS, value + 1, value - 1, -value, value * 2))
        return number if random.random() < 0.7 or abs(number) > 1e300 else float(number)
    if choice < 0.5 and isinstance(value, str):
        changed = random.choice(TEXTS)
        at = random.randrange(len(value) + 1)
        return random.choice((changed, value[:at] + changed + value[at:], value[:at], value + value, value[::-1]))
    return random.choice(
        (None, True, False, 0, 1, -1, 1.5, 2**70, -(10**30), 10**300, float("nan"), float("inf"), "", "x", "\0", "\n", [], {}, [[]], [None],
         {"": None}, [value], {"a": value}, str(value)[:200], _RAW, _RAW, [0] * 300, random.choice(TEXTS), random.choice(INTEGERS))
    )  # fmt: skip


_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def mutate_yaml(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Changes to YAML: as of text, and its own kinds: aliases and bombs of them, tags, depth, styles, merges."""
    if random.random() < 0.75:
        return mutate_text(random, data, others)
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    at = random.randrange(len(lines))
    match random.randrange(12):
        case 0:
            return (_BOMB + text).encode()
        case 1:
            deep = "[" * random.choice((5, 100, 2000, 20_000))
            lines[at] += deep + random.choice(("", "]" * len(deep)))
        case 2:
            lines[at] = re.sub(r": ", ": &x ", lines[at], count=1)
            lines.append("z: *x")
        case 3:
            lines[at] = re.sub(r"(: |- )", lambda m: m[1] + random.choice(TEXTS[54:60]) + " ", lines[at], count=1)
        case 4:
            lines[at] = re.sub(r"(: |- )(.*)", lambda m: f"{m[1]}{random.choice('|>')}\n    {m[2]}", lines[at], count=1)
        case 5:
            return ("\n".join(f"{'  ' * i}k:" for i in range(random.choice((20, 200, 1500)))) + "\n" + text).encode()
        case 6:
            return random.choice(
                (b"", b"\0", b"---\n---\n", b"&a [*a]", b"&a {*a : *a}", b"? [a]\n: b", b"!!set {a}", b"!!binary x", b"2001-01-01")
            )
        case 7:
            return text.replace(": ", random.choice((":", " : ", ": !!str ", ": !!float ", ": !!null ", ": !!map ")), 2).encode()
        case 8:
            return (text + "".join(f"{random.choice(TEXTS[60:])}k{i}: v\n" for i in range(random.choice((3, 400))))).encode(
                "utf-8", "replace"
            )
        case 9:
            lines[at] = "&a " + lines[at]
            lines.insert(at + 1, "- *a")
        case 10:
            lines[at] = '"\\x' + lines[at] + '\\U00110000"'
        case _:
            lines[at] = "<<: " + random.choice(("*a", "{a: b}", "[{a: b}]", "x")) + "\n" + lines[at]
    return "\n".join(lines).encode("utf-8", "replace")


_XML = (
    '<?xml version="1.0" encoding="utf-7"?>', '<?xml version="1.0" encoding="no-such"?>', '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
    "<!DOCTYPE x [<!ENTITY a 'xxxxxxxxxx'>" + "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in zip("abcdefgh", "bcdefghi",
    strict=True)) + "]>",
    "<a>" * 3000, "<![CDATA[", "<?x ?>", "<!-- -- -->", 'xmlns="x"', "&a;", "&i;", "</graph>", '<node id="1"/>',
    '<edge source="9" target="1"/>',
    '<data key="d0">1e999</data>', '<graph edgedefault="undirected">',
)  # fmt: skip


def mutate_xml(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Changes to XML: as of text, and its own kinds: declarations, entities and bombs of them, depth."""
    if random.random() < 0.75:
        return mutate_text(random, data, others)
    text = data.decode("utf-8", "replace")
    part = random.choice(_XML)
    if part.startswith("<!DOCTYPE"):
        head, sign, rest = text.partition("?>")
        return (head + sign + part + re.sub(r">[^<>]+<", lambda m: random.choice((m[0], ">&a;<", ">&i;<")), rest, count=9)).encode()
    at = random.choice([m.start() for m in re.finditer(r"[<>]", text)] or [0])
    return (part + text.partition("?>")[2] if part.startswith("<?xml") else text[:at] + part + text[at:]).encode("utf-8", "replace")


# --- protobuf -----------------------------------------------------------------------------------------------------------------------------

Field = tuple[int, int, Any]


def wire_fields(data: bytes) -> list[Field] | None:
    """(number, wire type, value) of each field of a message; None if it is none."""
    found: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if at < 0 or not number:
            return None
        value: Any
        if kind == 0:
            value, at = _read_varint(data, at)
            if at < 0:
                return None
        elif kind == 2:
            size, at = _read_varint(data, at)
            if at < 0 or at + size > len(data):
                return None
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            if at + size > len(data):
                return None
            value, at = data[at : at + size], at + size
        else:
            return None
        found.append((number, kind, value))
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def wire_bytes(fields: Sequence[Field]) -> bytes:
    """The message of some fields."""
    parts = []
    for number, kind, value in fields:
        content = varint(value) if kind == 0 else varint(len(value)) + value if kind == 2 else value
        parts.append(varint(number << 3 | kind) + content)
    return b"".join(parts)


def mutate_wire(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Changes to a protobuf message, field by field at any depth; lengths around them are mended. Now and then to its bytes."""
    if random.random() < 0.12:
        return mutate_bytes(random, data, others)
    for _ in range(1 + min(int(random.expovariate(0.9)), 5)):
        data = _change_wire(random, data, 0)[:MOST_SIZE]
    return data


def _change_wire(random: Random, data: bytes, depth: int) -> bytes:
    fields = wire_fields(data)
    if not fields or depth > 12:
        return mutate_packed(random, data) if random.random() < 0.6 else mutate_bytes(random, data)
    at = random.randrange(len(fields))
    number, kind, value = fields[at]
    if kind == 2 and random.random() < 0.75:
        fields[at] = number, kind, _change_wire(random, value, depth + 1)
        return wire_bytes(fields)
    match random.randrange(11):
        case 0 | 1 | 2 if kind == 0:
            fields[at] = number, kind, random.choice((*(i % (1 << 64) for i in INTEGERS), value + 1, max(0, value - 1), 1 << 69))
        case 0 | 1 | 2 if kind == 2:
            fields[at] = (
                number,
                kind,
                random.choice((b"", value * 2, value[: len(value) // 2], random.choice(TEXTS).encode("utf-8", "replace"))),
            )
        case 0 | 1 | 2:
            special = struct.pack("<d" if kind == 1 else "<f", random.choice((float("nan"), float("inf"), -1.0, 0.0, 1e30)))
            fields[at] = number, kind, random.choice((special, random.randbytes(len(value)), b"\xff" * len(value)))
        case 3:
            del fields[at]
        case 4:
            fields.insert(at, fields[random.randrange(len(fields))])
        case 5:
            other = random.randrange(len(fields))
            fields[at], fields[other] = fields[other], fields[at]
        case 6:
            fields[at] = random.choice((number + 1, max(1, number - 1), 1, 2, 15, 16, 100, 2**29 - 1)), kind, value
        case 7:
            fields[at] = number, 0, random.choice(INTEGERS) % (1 << 64)
        case 8:
            fields[at] = (
                number,
                2,
                random.choice((b"", b"\0", b"\xff\xfe", b"x" * 3000, *(t.encode("utf-8", "replace") for t in TEXTS[:40]))),
            )
        case 9:
            whole = wire_bytes(fields)
            return whole + varint(random.randrange(1, 20) << 3 | random.randrange(8)) + varint(random.choice(INTEGERS) % (1 << 64))
        case _:
            fields += fields[at:] * (random.choice((1, 20)) if len(data) < MOST_SIZE // 30 else 1)
    return wire_bytes(fields)


def mutate_packed(random: Random, data: bytes) -> bytes:
    """Changes to numbers that are packed as varints."""
    numbers: list[int] = []
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        if at < 0:
            return mutate_bytes(random, data)
        numbers.append(value)
    if not numbers:
        return b"".join(varint(random.choice(INTEGERS) % (1 << 64)) for _ in range(random.choice((1, 2, 100))))
    at = random.randrange(len(numbers))
    match random.randrange(7):
        case 0 | 1 | 2:
            numbers[at] = random.choice((*(i % (1 << 64) for i in INTEGERS), numbers[at] + 1, max(0, numbers[at] - 1)))
        case 3:
            del numbers[at]
        case 4:
            numbers.insert(at, random.choice(INTEGERS) % (1 << 64))
        case 5:
            other = random.randrange(len(numbers))
            numbers[at], numbers[other] = numbers[other], numbers[at]
        case _:
            numbers[at:] = [random.choice(INTEGERS) % (1 << 64)] * (len(numbers) - at)
    return b"".join(map(varint, numbers))


def mutate_delimited(random: Random, records: list[bytes]) -> list[bytes]:
    """Changes to a sequence of messages: in one of them, or to their order and number."""
    made = list(records)
    at = random.randrange(len(made))
    match random.randrange(12):
        case 0:
            del made[at]
        case 1:
            made.insert(at, made[random.randrange(len(made))])
        case 2:
            other = random.randrange(len(made))
            made[at], made[other] = made[other], made[at]
        case 3:
            made.insert(at, random.randbytes(random.randrange(30)))
        case _:
            made[at] = mutate_wire(random, made[at], made)
    return made


# --- gzip ---------------------------------------------------------------------------------------------------------------------------------


@functools.cache
def zeros(size: int, window: int) -> bytes:
    """That many zero bytes, deflated as hard as possible: a bomb. `window` is that of `zlib.compressobj` (15 zlib, 31 gzip)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def mutate_gzip(random: Random, data: bytes, inside: Any) -> bytes:
    """Changes to what a gzip file holds (by `inside`), to the file, or to what it unpacks to: much more than it should."""
    kind = random.random()
    if kind < 0.3:
        return mutate_bytes(random, data)
    try:
        content = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return mutate_bytes(random, data)
    if kind < 0.31:
        return gzip.compress(content, 1, mtime=0) + zeros(400 << 20, 31)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        file.write(inside(random, content))
    packed = out.getvalue()
    return packed + packed if kind < 0.35 else packed
