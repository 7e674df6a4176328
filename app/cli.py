"""The `s2chat` command. Each subcommand imports its own code, so that none pays for another."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app import exits
from app.flags import FLAGS, add_flag, add_flags, text
from app.text import clean
from engine.errors import S2Error
from engine.paths import settings_file
from engine.request import SPECULATION_FIELDS

if TYPE_CHECKING:
    from app.settings import Settings

_EPILOG = f"""\
Without a command the chat opens. `s2chat COMMAND --help` shows a command's flags.

{exits.EPILOG}

environment:
  S2CHAT_HOME     folder for chats, logs and the engine's socket, instead of the platform's
  S2CHAT_SERVER   URL of a server that answers instead of this machine, as --server
  OPENAI_API_KEY  its key, where no --key-file names one; not sent over plain http to another machine
  NO_COLOR        no colours"""

_MODELS = f"""\
Without an action all models are listed that are found on this machine: the one that ships, those that were
downloaded or made, those in the folders of the settings, and those of Hugging Face, LM Studio, Ollama and
llama.cpp. The network is used by `get` alone.
`s2chat models ACTION --help` shows an action's flags.

{exits.EPILOG}"""

_GET = f"""\
OWNER/NAME is a repository with GGUF files. Of several models in it Q4_K_M is taken unless FILE or its
quantisation is named; a split set comes whole. There must be room for all of it. What arrives is checked
against the hub's SHA-256 before it is used. Ctrl+C stops, and the same command goes on from there.
HF_ENDPOINT names another hub, and `hf auth login` a user.

{exits.EPILOG}"""

_PACK = f"""\
A model that is larger than memory is read from disk while it runs. In a GGUF file an expert lies in three
places; a pack has it in one, so that one read fetches it. The pack is NAME.s2pack beside the model, or in
~/.cache/s2chat where that folder cannot be written. It takes about as much disk as the model, and the next
start uses it. `s2chat models rm` removes it. Ctrl+C stops, and the same command goes on from there; when the
disk fills up meanwhile, what was written is removed.

{exits.EPILOG}"""


_PLAN = f"""\
Speeds are estimates from bytes and bandwidths, before the first run. Known models have names such as
olmoe-1b-7b or qwen3-30b-a3b:Q8_0; the list below a plan says which of them suit the device.

{exits.EPILOG}"""


def main(argv: Sequence[str] | None = None) -> int:
    # Without XDG_RUNTIME_DIR, as in containers, the fallback it announces is what we want.
    warnings.filterwarnings("ignore", module="platformdirs")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["bench"]:
            return _bench(words[1:])
        arguments = _parser().parse_args(_with_command(words))
        code = _COMMANDS[arguments.command](arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk is to be noticed here, not in the interpreter's last moments
        return code
    except S2Error as error:
        return exits.complain(error)
    except BrokenPipeError:
        exits.drop_stdout()
        return exits.PIPE
    except OSError as error:
        exits.drop_stdout()
        return exits.complain(S2Error(f"the system refused to go on: {error}"))
    except KeyboardInterrupt:
        return exits.CANCELLED


def _with_command(words: list[str]) -> list[str]:
    """`s2chat -m FILE` is a chat as well."""
    bare = not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"))
    return ["chat", *words] if bare else words


def _parser() -> argparse.ArgumentParser:
    parser = _new_parser(None, "s2chat", "Chat with Mixture-of-Experts models on this machine.", _EPILOG)
    parser.add_argument("--version", action=_Versions, nargs=0, help="what this program is made of")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chat = _new_parser(commands, "chat", "open the chat (the default)", exits.EPILOG)
    add_flags(chat)
    run = _new_parser(
        commands, "run", "answer one prompt and leave; the prompt may come from a pipe", exits.EPILOG
    )
    run.add_argument(
        "-p", "--prompt", metavar="TEXT", type=text, help="the prompt; what is piped in follows it"
    )
    add_flags(run)
    run.add_argument(
        "--stop",
        metavar="STRING",
        action="append",
        type=text,
        help="end the answer before STRING; repeatable",
    )
    run.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without a chat template"
    )
    run.add_argument(
        "--compare",
        metavar="MODE,MODE",
        help="answer in both modes, with one seed, and say what differs: in speed and in the text",
    )
    run.add_argument(
        "--json", action="store_true", help="print one JSON object with text, tokens and timings"
    )
    _add_serve(commands)
    status = _new_parser(commands, "status", "what the engine does", exits.EPILOG)
    status.add_argument("--json", action="store_true", help="as one JSON object")
    _new_parser(commands, "stop", "end the engine, whoever uses it", exits.EPILOG)
    doctor = _new_parser(
        commands, "doctor", "what is installed, what this machine has, what is missing", exits.EPILOG
    )
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    doctor.add_argument(
        "--bundle", metavar="FILE", type=Path, help="write all of it to a .zip for somebody who helps"
    )
    _add_plan(commands)
    _add_models(commands)
    _new_parser(commands, "bench", "measure speed; has its own flags: `s2chat bench --help`", "")
    return parser


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = _new_parser(commands, "plan", "what the engine would do here with a model, and why", _PLAN)
    for flag in FLAGS:
        if flag.target == "load" or flag.field in SPECULATION_FIELDS:
            add_flag(plan, flag)
    plan.add_argument(
        "-m", "--model", metavar="MODEL", type=Path, help="a GGUF file or the name of a known model"
    )
    _add_device(plan)
    plan.set_defaults(json=False)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="PROFILE",
        type=text,
        help="another device: a name such as orin-nano-8gb, or a file",
    )
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as one JSON object")


def _add_models(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    models = _new_parser(commands, "models", "list and download models; pack their experts", _MODELS)
    models.add_argument("--json", action="store_true", help="list them as JSON")
    actions = models.add_subparsers(dest="action", metavar="ACTION")
    listing = _new_parser(actions, "list", "list models (the default)", exits.EPILOG)
    listing.add_argument(
        "places", metavar="PLACE", nargs="*", type=Path, help="GGUF files, or folders with some"
    )
    listing.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON")
    get = _new_parser(actions, "get", "download a model from the Hugging Face hub", _GET)
    get.add_argument("name", metavar="OWNER/NAME[:FILE]", type=text, help="FILE may be a quantisation too")
    _new_parser(actions, "forget", "remove what unfinished downloads left", exits.EPILOG)
    pack = _new_parser(actions, "pack", "write the experts of a model once more, for faster reading", _PACK)
    remove = _new_parser(
        actions, "rm", "remove the pack of a model, finished or not; never the model", exits.EPILOG
    )
    info = _new_parser(actions, "info", "what a model is, and what it would do on this machine", _PLAN)
    info.add_argument("model", metavar="MODEL", nargs="?", type=Path, help="a GGUF file or a known name")
    _add_device(info)
    check = _new_parser(actions, "check", "read a whole pack and compare it with its checksums", exits.EPILOG)
    for action in (pack, remove, check):
        _add_model(action)
    pack.add_argument("-y", "--yes", action="store_true", help="do not ask before writing")


def _add_model(parser: argparse.ArgumentParser) -> None:
    flag = next(flag for flag in FLAGS if flag.field == "model")
    parser.add_argument("model", metavar="MODEL", nargs="?", type=flag.type, help=flag.help)


class _Versions(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from engine.versions import versions

        print("\n".join(f"{part} {version}" for part, version in versions().items()))
        parser.exit()


def _new_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser] | None, name: str, text: str, epilog: str
) -> argparse.ArgumentParser:
    make = argparse.ArgumentParser if commands is None else commands.add_parser
    options = {"description": text[0].upper() + text[1:], "epilog": epilog}
    if commands is not None:
        options["help"] = text
    return make(name, formatter_class=argparse.RawDescriptionHelpFormatter, **options)  # type: ignore[arg-type]


def _chat(arguments: argparse.Namespace) -> int:
    from app.open import open_chat

    return open_chat(arguments, _settings_over(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from app.run import run

    for warning in _settings_over(arguments).warnings:
        print(f"s2chat: {clean(warning)}", file=sys.stderr)
    return run(arguments)


def _settings_over(arguments: argparse.Namespace) -> Settings:
    """The settings, after what the command line and the environment left open is set to them.

    `arguments.address` is the server that answers, None for this machine's engine, and
    `arguments.remote_model` the model to ask for there.
    """
    from app.server import take_server
    from app.settings import read_settings

    settings = read_settings(settings_file())
    take_server(arguments, settings)
    settings.fill(arguments)
    return settings


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from app.serve import NOTES, add_serve_flags

    words = "keep the engine for other programs: OpenAI's protocol on a socket, and on a port"
    add_serve_flags(_new_parser(commands, "serve", words, f"{NOTES}\n{exits.EPILOG}"))


def _serve(arguments: argparse.Namespace) -> int:
    from app.serve import serve

    return serve(arguments)


def _status(arguments: argparse.Namespace) -> int:
    from app.status import show_status

    return show_status(as_json=arguments.json)


def _stop(_: argparse.Namespace) -> int:
    from app.status import stop_engine

    return stop_engine()


def _doctor(arguments: argparse.Namespace) -> int:
    from app.doctor import examine

    return examine(as_json=arguments.json, bundle=arguments.bundle)


def _plan(arguments: argparse.Namespace) -> int:
    from app.planning import plan

    return plan(arguments)


def _models(arguments: argparse.Namespace) -> int:
    from app.models import models

    return models(arguments)


def _bench(words: list[str]) -> int:
    try:
        bench = importlib.import_module("engine.bench")
    except ModuleNotFoundError as error:
        if error.name != "engine.bench":
            raise
        print("s2chat: this installation has no benchmark", file=sys.stderr)
        return exits.ERROR
    from app.bench import ui

    return int(bench.main(words, {"ui": bench.Bench(ui.HELP, ui.add_flags, ui.run)}))


_COMMANDS = {
    "chat": _chat,
    "run": _run,
    "serve": _serve,
    "status": _status,
    "stop": _stop,
    "doctor": _doctor,
    "plan": _plan,
    "models": _models,
}


if __name__ == "__main__":
    sys.exit(main())
