"""A process of our own: another interpreter that imports one module of this package and runs its `main`.

Isolated (-I), then with exactly our module path: neither PYTHONPATH nor the folder `perf`, whose module names shadow
the standard library's, can change what it imports. Ctrl-C is for us alone, so it ignores SIGINT from the first moment.
"""

import json
import os
import sys
from pathlib import Path

#: The folder that `perf` lies in.
PACKAGE_ROOT = Path(__file__).resolve().parent.parent

_BOOT = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])"
)


def command(module: str) -> list[str]:
    """What starts it: `module` is its whole name."""
    module_path = [*map(os.path.abspath, sys.path), str(PACKAGE_ROOT)]
    return [sys.executable, "-I", "-c", f"{_BOOT}; from {module} import main; main()", json.dumps(module_path)]
