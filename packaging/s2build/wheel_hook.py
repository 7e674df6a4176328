"""Runs scikit-build-core's build hook in the current folder: `wheel_hook.py OUTPUT_DIR SETTINGS_AS_JSON`.

A script of its own because it runs under the build tools' Python.
"""

from __future__ import annotations

import json
import sys

from scikit_build_core.build import build_wheel

if __name__ == "__main__":
    print("wheel:", build_wheel(sys.argv[1], json.loads(sys.argv[2])), flush=True)
