"""Makes what others install, in dist/: `packaging/dist wheels` or `packaging/dist deb`.

wheels: a folder with everything for `pip install --no-index --find-links dist/wheels-amd64 s2chat`, on any
processor of one architecture. deb: one file for Debian and Ubuntu, with those wheels inside. --for makes them
for the other architecture, with a cross compiler. The first build of the native library takes about three
minutes of two cores.
"""

from __future__ import annotations

import argparse
import platform
import sys

from s2build.artifact import check_wheels
from s2build.cache import Cache
from s2build.console import say
from s2build.deb import ARCHITECTURES, make_deb
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY
from s2build.wheelhouse import make_wheelhouse

DIST = REPOSITORY / "dist"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="packaging/dist", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("wheels", "deb"))
    machines = {debian: machine for machine, debian in ARCHITECTURES.items()}
    parser.add_argument("--for", dest="architecture", choices=machines, help="(default: this machine's)")
    options = parser.parse_args()
    machine = machines.get(options.architecture, platform.machine())
    wheels = DIST / f"wheels-{ARCHITECTURES.get(machine, machine)}"
    try:
        make_wheelhouse(wheels, machine, Cache.default())
        say(f"runs with glibc {check_wheels(wheels, machine)} or newer")
        print(wheels if options.what == "wheels" else make_deb(wheels, DIST, machine))
    except SetupError as error:
        say(f"s2chat: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
