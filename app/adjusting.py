"""The settings as the chat uses and changes them: kept in their file, and made to count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.lacking import lack_of_setting
from app.setting import THEMES
from app.settinglist import SettingScreen
from app.settings import change
from engine.errors import S2Error

if TYPE_CHECKING:
    from app.chat import ChatApp
    from app.setting import Setting


class Adjusting:
    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.settings = app.options.settings

    async def open(self) -> None:
        await self._app.push_screen(SettingScreen(self))

    def begin(self) -> str:
        """Says what is odd in the file; the theme it names, "" for none."""
        for warning in self.settings.warnings:
            self._app.notice(warning)
        name = self.settings.get("theme")
        theme = THEMES.get(name, name) if name else ""
        if theme and theme not in self._app.available_themes:
            self._app.notice(f"theme: there is no theme {name!r}; Ctrl+P, Colours shows all")
            return ""
        return theme

    def theme_chosen(self, theme: str) -> None:
        """A theme that was chosen elsewhere; it must not be another one at the next start."""
        name = self.settings.get("theme")
        if name and THEMES.get(name, name) != theme:
            short = next((short for short, full in THEMES.items() if full == theme), theme)
            self.keep("theme", short)

    def keep(self, key: str, value: Any) -> str:
        """Writes one setting, None for its default. Says what went wrong, "" for nothing."""
        try:
            self.settings = change(self.settings, key, value)
        except S2Error as error:
            return error.line()
        return ""

    async def set(self, setting: Setting, value: Any) -> str:
        """Keeps a setting and makes it count. Says what went wrong, "" for nothing."""
        problem = self.keep(setting.key, value)
        return problem or await self._apply(setting)

    async def _apply(self, setting: Setting) -> str:
        app, value = self._app, self.settings.get(setting.key)
        if setting.key == "theme":
            theme = THEMES.get(value or "dark", value)
            if theme not in app.available_themes:
                return f"there is no theme {value!r}; Ctrl+P, Colours shows all"
            app.theme = theme
        elif setting.key == "mode" and value and not self.lack(setting):
            await app.tuning.mode(value)
        elif setting.section == "sampling":
            if value is None:
                app.options.request.pop(setting.field, None)
            else:
                app.options.request[setting.field] = value
        elif setting.key == "engine.budget":
            return await self._budget(value)
        return ""

    def lack(self, setting: Setting) -> str:
        """Why `setting` does not count with the engine that answers, "" when it does."""
        return lack_of_setting(self._app.link.offer, setting.key, setting.field)

    async def _budget(self, value: int | str | None) -> str:
        if value is None or not self._app.board.is_ready or self._app.link.offer.is_remote:
            return ""  # the next start does without
        try:
            client = await self._app.link.client()
            self._app.notice(await client.change_budget(value))
        except S2Error as error:
            return f"kept for the next start, but not now: {error.line()}"
        return ""
