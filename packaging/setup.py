"""Makes the checkout's .venv or brings it up to date: `python3 packaging/setup.py [--dev] [--cpu]`."""

from __future__ import annotations

import sys

from s2build.cache import Cache
from s2build.console import say
from s2build.environment import set_up, up_to_date
from s2build.problem import SetupError


def main(arguments: list[str]) -> int:
    dev, cpu_only = "--dev" in arguments, "--cpu" in arguments
    if up_to_date(dev=dev, cpu_only=cpu_only):
        return 0
    try:
        with Cache.default().lock("setup"):
            if not up_to_date(dev=dev, cpu_only=cpu_only):
                set_up(dev=dev, cpu_only=cpu_only)
    except SetupError as error:
        say(f"s2chat: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ns2chat: set-up interrupted; the next start goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
