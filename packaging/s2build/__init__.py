"""Builds the native wheel and the environment of a checkout.

Standard library only: it runs before anything is installed.
"""
