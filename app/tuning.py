"""System prompts and sampling of a chat: chosen from a list or typed, for this chat and those that follow."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from app.choice import Choice, ChoiceScreen, LineScreen
from app.lacking import lack_of_field
from app.sampling import SETTINGS, Setting, parse, setting
from app.text import one_line
from engine.errors import BadRequest
from engine.request import EFFORTS, NOT_OFFERED

if TYPE_CHECKING:
    from app.chat import ChatApp

_BUILT_IN = {
    "concise": "Answer in as few words as the question allows. No introductions, no summaries.",
    "coder": "You are a careful programmer. Answer with working code in a fenced block and say in one or two "
    "sentences what it does and what it assumes.",
    "translator": "Translate what the user writes into English; if it is English, into the language the user "
    "named last. Answer with the translation only.",
    "editor": "Correct grammar, spelling and style of what the user writes and keep its meaning and tone. "
    "Answer with the corrected text only.",
    "teacher": "Explain step by step, from what the user knows to what is new, with one small example. End "
    "with a question that shows whether it was understood.",
}
_DEFAULT, _WRITE = "default", "write …"


class Tuning:
    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def mode(self, name: str) -> None:
        """Takes mode `name`, without one the next, for the answers to come."""
        app = self._app
        if name in NOT_OFFERED:
            app.hint(f"{name} is not offered: {NOT_OFFERED[name]}.")
            return
        name = app.board.mode_named(name) if name else app.board.mode_after(app.mode)
        if not name:
            app.hint(app.board.mode_names or "The engine has not said yet which modes it knows.")
            return
        app.mode = name
        app.hint(app.board.set_mode(name))
        app.refresh_status()
        await app.chats.remember("mode", name)

    async def mode_step(self, step: int) -> None:
        """Takes the mode `step` further in the engine's list."""
        await self.mode(self._app.board.mode_after(self._app.mode, step))

    async def drafts(self, name: str, value: int) -> None:
        """One of the speculation fields but the mode, for the answers to come, until another model is loaded.

        Raises the S2Error the engine refuses with.
        """
        app = self._app
        settings = await (await app.link.client()).settings(**{name: value})
        app.options.request.pop(name, None)  # what the command line said would win
        if app.board.snapshot is not None:
            app.board.snapshot = replace(app.board.snapshot, settings=settings)

    async def budget(self, wish: str) -> str:
        """Another budget of the engine, at once; what it means in words. Raises S2Error."""
        return await (await self._app.link.client()).change_budget(wish)

    # System prompts

    async def system(self, text: str) -> None:
        """Takes `text` as system prompt, the name of a preset as well; without it, asks for one."""
        if not text:
            await self._choose_system()
            return
        presets = await self._presets()
        await self._use(None if text == _DEFAULT else presets.get(text, text))

    async def _choose_system(self) -> None:
        presets = await self._presets()
        app = self._app
        choices = [Choice(_DEFAULT, _DEFAULT, one_line(app.options.system or "the model's own", 60))]
        choices += [Choice(name, name, one_line(text, 60)) for name, text in presets.items()]
        choices.append(Choice(_WRITE, _WRITE, "a prompt of your own"))

        async def chosen(name: str | None) -> None:
            if name == _WRITE:
                await app.push_screen(LineScreen("System prompt", app.system), self._typed)
            elif name is not None:
                await self._use(presets.get(name))

        now = one_line(app.system, 200) or "the model's own"
        await app.push_screen(ChoiceScreen("System prompt", choices, f"Now: {now}"), chosen)

    async def _typed(self, text: str | None) -> None:
        if text is not None:
            await self._use(text.strip() or None)

    async def _use(self, text: str | None) -> None:
        app = self._app
        await app.chats.open.set_system(text)
        app.notice(f"System prompt from now on: {app.system or 'the model’s own'}")

    async def preset(self, name: str) -> None:
        """Keeps the system prompt of this chat under `name`; without one there, forgets that name."""
        if not name:
            self._app.hint("/preset NAME keeps the system prompt of this chat under that name.")
            return
        own = await self._own_presets()
        text = self._app.chats.open.system
        if text:
            own[name] = text
        else:
            own.pop(name, None)
        await self._app.chats.remember("presets", json.dumps(own, ensure_ascii=False))
        self._app.hint(f"{'Kept as' if text else 'Forgotten:'} {name}")

    async def _presets(self) -> dict[str, str]:
        return {**_BUILT_IN, **await self._own_presets()}

    async def _own_presets(self) -> dict[str, str]:
        try:
            own = json.loads(await self._app.chats.setting("presets") or "{}")
        except ValueError:
            return {}
        return {str(name): str(text) for name, text in own.items()} if isinstance(own, dict) else {}

    # Sampling

    async def sampling(self, words: str) -> None:
        """`NAME VALUE` changes one setting, `NAME default` resets it; without words, asks."""
        name, _, value = words.replace("=", " ").partition(" ")
        try:
            if not name:
                await self._choose_setting()
            elif not value.strip():
                await self._ask_value(name)
            else:
                await self._change(name, value.strip())
        except BadRequest as error:
            self._app.hint(error.line())

    async def _choose_setting(self) -> None:
        async def chosen(name: str | None) -> None:
            if name is not None:
                await self._ask_value(name)

        await self._app.push_screen(
            ChoiceScreen("Sampling, from the next answer", [self._choice(row) for row in SETTINGS]), chosen
        )

    def _choice(self, row: Setting) -> Choice:
        reason = lack_of_field(self._app.link.offer, row.name)
        title = f"{row.name:<18}{'' if reason else self._now(row.name):<5}"
        return Choice(row.name, title, reason or row.words, off=bool(reason))

    async def _ask_value(self, name: str) -> None:
        row = setting(name)

        async def typed(text: str | None) -> None:
            if text is not None:
                await self.sampling(f"{row.name} {text.strip() or 'default'}")

        given = self._given(row.name)
        default = self._default(row)
        said = f"{row.words}. Empty for the default, {'none' if default is None else row.show(default)}."
        await self._app.push_screen(
            LineScreen(row.name, "" if given is None else row.show(given), said=said), typed
        )

    async def _change(self, name: str, word: str) -> None:
        row, app = setting(name), self._app
        values = dict(app.chats.open.sampling)
        if word == "default":
            values.pop(row.name, None)
        else:
            value = parse(row, word)
            if reason := lack_of_field(app.link.offer, row.name):
                raise BadRequest(f"{row.name}: {reason}")
            if row.name == "thinking" and not app.board.can_switch_thoughts:
                how = "its levels are " + ", ".join(EFFORTS) if app.board.can_set_effort else ""
                raise BadRequest("the model's chat template has no switch for thinking", hint=how)
            if row.levels and not app.board.can_set_effort:
                raise BadRequest("the model's chat template has no levels of reasoning")
            values[row.name] = value
        await app.chats.open.set_sampling(values)
        app.hint(f"{row.name} {self._now(row.name)}, from the next answer")

    def _given(self, name: str) -> float | None:
        """What the chat or the command line says, None for nothing."""
        value = self._app.chats.open.sampling.get(name, self._app.options.request.get(name))
        if isinstance(value, str):
            levels = setting(name).levels
            return levels.index(value) + 1 if value in levels else None
        return value if isinstance(value, (int, float)) else None

    def _now(self, name: str) -> str:
        given, row = self._given(name), setting(name)
        ours = self._app.link.offer.is_ours  # what others do without being told is theirs
        return row.show(given if given is not None else self._default(row) if ours else None)

    def _default(self, row: Setting) -> float | None:
        """What the model advises, or else ours."""
        return self._app.board.advised.get(row.name, row.default)
