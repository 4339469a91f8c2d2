"""Gets TensorFlow imported the way a stage needs it: oneDNN on or off, quiet, with the asked-for threads.

oneDNN's switch is an environment variable that TensorFlow reads once, at import; so is its log level.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from fathom_trace.errors import CaptureError, UnknownNameError, one_line

STAGES = ("source", "optimized")
"""`source`: oneDNN and graph rewriting off, the op types that the program names. `optimized`: as TensorFlow would run it."""

ONEDNN_SWITCH = "TF_ENABLE_ONEDNN_OPTS"
_OFF = {"0", "false", "off"}


def import_tensorflow(stage: str) -> Any:
    """The `tensorflow` module, imported for `stage`.

    Raises:
        UnknownNameError: no stage has that name.
        CaptureError: TensorFlow is not installed or does not import, or was imported before with oneDNN in the wrong state.
    """
    if stage not in STAGES:
        raise UnknownNameError("stage", stage, STAGES)
    wanted = "0" if stage == "source" else "1"
    if "tensorflow" in sys.modules:
        is_off = os.environ.get(ONEDNN_SWITCH, "").lower() in _OFF
        if is_off != (stage == "source"):
            raise CaptureError(
                f"stage '{stage}' needs oneDNN {'off' if stage == 'source' else 'on'}, but TensorFlow is already imported with it"
                f" {'off' if is_off else 'on'}; put this line before `import tensorflow`:"
                f" import os; os.environ['{ONEDNN_SWITCH}'] = '{wanted}'"
            )
    else:
        os.environ[ONEDNN_SWITCH] = wanted
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with _quiet():
            return importlib.import_module("tensorflow")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            raise CaptureError("TensorFlow is not installed; capture needs it: pip install 'tensorflow>=2.21,<2.22'") from None
        raise CaptureError(f"TensorFlow does not import: {one_line(error)}") from error


def set_intra_threads(tensorflow: Any, threads: int, cores: int) -> int:
    """Size TensorFlow's intra-op thread pool, which is one for the whole process and made once; returns its size.

    `threads` 0 leaves it as it is: what was configured before, or one thread for each of `cores`.

    Raises:
        CaptureError: TensorFlow has started with another number.
    """
    present = int(tensorflow.config.threading.get_intra_op_parallelism_threads()) or cores
    if threads in (0, present):
        return present
    try:
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        raise CaptureError(
            f"TensorFlow has already started, so it can no longer be given {threads} threads; put this line right after"
            f" `import tensorflow as tf`: tf.config.threading.set_intra_op_parallelism_threads({threads})"
        ) from None
    return threads


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what native code writes to stderr while TensorFlow loads (it warns of absent GPUs); shown if loading fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        saved = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(saved, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
