"""Engines on other machines: where they are, what answers there, and how to speak with it."""
