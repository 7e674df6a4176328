"""Measurements of the interface itself, on a real terminal."""
