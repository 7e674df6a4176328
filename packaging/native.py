"""Builds the native wheel and prints where it is: `native.py [--cpu | --portable | --stock] [--keep]`.

--stock builds the same source unpatched, for comparison, and prints the folder of its libraries
(for LLAMA_CPP_LIB_PATH).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from pathlib import Path

from s2build.console import say
from s2build.cuda import CPU, choose_preset, find_gpu, find_toolkit
from s2build.kernels import portable_preset
from s2build.problem import SetupError
from s2build.wheel import native_wheel


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    parser.add_argument("--portable", action="store_true", help="for any processor of this architecture")
    parser.add_argument("--stock", action="store_true", help="the original, on the CPU")
    parser.add_argument(
        "--keep", action="store_true", help="keep the build tree, so that the next build is short"
    )
    options = parser.parse_args()
    try:
        if options.stock:
            print(unpacked_libraries(native_wheel(CPU, patched=False)))
        elif options.portable:
            print(native_wheel(portable_preset(), keep_tree=options.keep))
        else:
            preset, notice = choose_preset(find_gpu(), find_toolkit(), cpu_only=options.cpu)
            if notice:
                say(notice)
            print(native_wheel(preset, keep_tree=options.keep))
    except SetupError as error:
        say(f"s2chat: {error}")
        return 1
    return 0


def unpacked_libraries(wheel: Path) -> Path:
    """The libraries of a wheel in a folder beside it."""
    target = wheel.parent / "unpacked"
    if not target.exists():
        partial = wheel.parent / "unpacked.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                partial, [name for name in archive.namelist() if name.startswith("llama_cpp/lib/")]
            )
        partial.rename(target)
    return target / "llama_cpp/lib"


if __name__ == "__main__":
    sys.exit(main())
