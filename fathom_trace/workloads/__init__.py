"""All workloads: the files in the top-level `workloads/` folder, which a wheel carries in this package.

The contract is `fathom_trace/workload.py`.
"""

from fathom_trace.registry import Registry, plugin_path
from fathom_trace.workload import REQUIRED

__path__ = plugin_path(__file__, __path__)

REGISTRY = Registry("workload", __name__, tuple(__path__), REQUIRED)
