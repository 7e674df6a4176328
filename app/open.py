"""Opens the chat interface on this terminal and leaves the terminal as it was."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import NoReturn

from app import exits, terminal
from app.flags import fields_for, model_of
from app.keeper import keep
from app.options import ChatOptions, Load
from app.settings import Settings
from engine.paths import Paths


def open_chat(arguments: argparse.Namespace, settings: Settings) -> int:
    if not terminal.is_interactive():
        print("s2chat: the chat needs a terminal for input and output", file=sys.stderr)
        print("hint: `s2chat run` answers one prompt and works in pipes", file=sys.stderr)
        return exits.USAGE

    def chat(keeper: int | None) -> NoReturn:
        _chat(arguments, settings, keeper)

    return keep(chat)


def _chat(arguments: argparse.Namespace, settings: Settings, keeper: int | None) -> NoReturn:
    terminal.calm()
    gc.disable()  # until the chat is there: nothing that is made on the way is garbage
    from app.chat import ChatApp

    request = fields_for("request", arguments)
    options = ChatOptions(
        Load(model_of(arguments), **fields_for("load", arguments)),
        mode=request.pop("mode", ""),
        request=request,
        system=arguments.system or "",
        settings=settings,
        server=arguments.address,
        model=arguments.remote_model,
        keeper=keeper,
    )
    app = ChatApp(Paths.default(), options)
    try:
        app.run()
    finally:
        app.close()
    code = app.return_code or exits.OK
    sys.stdout.flush()
    sys.stderr.flush()
    # An engine that is being started is waited for in a thread, which must not hold the way out.
    os._exit(code)
