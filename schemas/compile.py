"""Compiles every `.proto` in this folder into `fathom_trace/generated/`, which is checked in. In a checkout:

    pip install grpcio-tools==1.63.2 'setuptools<80'
    python schemas/compile.py

That protoc (26.1, Python code 5.26.1) is the newest whose Python code does not ask for a runtime of its own version or later, and no
newer than the oldest protobuf runtime that this package allows. Its code was run under the runtimes 5.26.1, 6.31.1 and 7.36.2, in C and
in pure Python, with warnings as errors. grpcio-tools is needed here only, never to run the package.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from grpc_tools import protoc

SCHEMAS = Path(__file__).resolve().parent
GENERATED = SCHEMAS.parent / "fathom_trace" / "generated"

# Files register under their path in a table that all protobuf users of a process share; `trace.proto` alone is a likely name.
REGISTERED = {"trace.proto": "fathom_trace/v1/trace.proto"}


def main() -> None:
    """Compile all schemas."""
    for schema in sorted(SCHEMAS.glob("*.proto")):
        registered = Path(REGISTERED.get(schema.name, schema.name))
        with tempfile.TemporaryDirectory() as folder:
            mapping = f"-I{registered.parent}={SCHEMAS}" if registered.parent.name else f"-I{SCHEMAS}"
            if protoc.main(["protoc", mapping, f"--python_out={folder}", f"--pyi_out={folder}", str(registered)]):
                raise SystemExit(f"protoc refuses {schema}")
            for made in Path(folder).rglob("*_pb2.py*"):
                (GENERATED / made.name).write_text(made.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
