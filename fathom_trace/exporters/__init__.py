"""All exporters: the files in the top-level `exporters/` folder, which a wheel carries in this package.

The contract is `fathom_trace/exporter.py`.
"""

from fathom_trace.exporter import REQUIRED
from fathom_trace.registry import Registry, plugin_path

__path__ = plugin_path(__file__, __path__)

REGISTRY = Registry("exporter", __name__, tuple(__path__), REQUIRED)
