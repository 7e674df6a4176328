"""The terminal program: command line, one-shot run, and the chat interface."""
