"""Protobuf modules made by `schemas/compile.py` from the schemas there; checked in, not to be edited."""
