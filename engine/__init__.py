"""The engine: device, plan, session, loop, server and client. Never imports the user interface."""

__version__ = "0.1.0"
