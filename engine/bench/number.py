"""Whole numbers from 1 up, as the flags of benches have them."""

from __future__ import annotations

import argparse


def number(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)
