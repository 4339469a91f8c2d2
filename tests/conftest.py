"""TensorFlow, where a test imports it, is imported with oneDNN off: the state that stage `source` needs."""

from __future__ import annotations

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
