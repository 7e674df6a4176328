"""What can go wrong while setting up, in one line a person can act on."""

from __future__ import annotations


class SetupError(Exception):
    """Says what is missing or broken and what to do about it; printed as one line, without a traceback."""
