"""What is done with single messages: asked, edited, asked again, continued, versions switched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.entry import CUT

if TYPE_CHECKING:
    from app.chat import ChatApp
    from app.entry import Entry

BUSY = "An answer is being written. Esc stops it."


class Turns:
    """`editing` is the message whose new text is being written; `chosen` the one the keys are about."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.editing: Entry | None = None
        self.chosen: Entry | None = None
        self.draft = ""

    # Asking

    async def ask(self, text: str) -> None:
        """Sends `text`: a new question, or the new text of the message that is being edited."""
        app, old = self._app, self.editing
        if old is not None:
            self._leave_edit()
            await self._rewrite(old, text)
            return
        app.take_prompt(text)
        entry = await app.chats.open.begin(text, app.mode, app.attachments.take())
        for view in app.chats.open.views[-2:]:
            app.transcript.add(view)
        app.answer(entry)

    async def _rewrite(self, old: Entry, text: str) -> None:
        app, chat = self._app, self._app.chats.open
        if text == old.text and old.role == "assistant":
            return
        if old.role == "assistant":
            await chat.rewrite(old, text)
            app.show_path()
            app.hint("Your version of the answer is shown; the model's own is kept. /continue goes on.")
            return
        entry = await chat.begin_edited(old, text, app.mode)
        app.show_path()
        app.answer(entry)

    async def again(self, about: Entry | None = None) -> None:
        """Another answer, beside the one that is there."""
        app, chat = self._app, self._app.chats.open
        old = self._answer_of(about)
        if old is None:
            app.hint("There is no answer to ask for again.")
            return
        entry = await chat.begin_again(old, app.mode)
        app.show_path()
        app.answer(entry)

    async def go_on(self, about: Entry | None = None) -> None:
        """Lets an answer that ended too early go on where it stopped."""
        app, chat = self._app, self._app.chats.open
        entry = self._answer_of(about)
        if entry is None or not entry.text:
            app.hint("There is no answer that could go on.")
            return
        if [e for e in chat.entries[chat.entries.index(entry) + 1 :] if e.role != CUT]:
            app.hint("Only the last answer can go on.")
            return
        await chat.resume(entry, app.mode)
        app.answer(entry, goes_on=True)

    def _answer_of(self, about: Entry | None) -> Entry | None:
        """The answer `about` is or has; without it the last one, if nothing but a cut follows."""
        chat = self._app.chats.open
        if about is None:
            entries = [entry for entry in chat.entries if entry.role != CUT]
            return entries[-1] if entries and entries[-1].role == "assistant" else None
        if about.role == "assistant":
            return about
        following = chat.entries[chat.entries.index(about) + 1 :]
        return following[0] if following and following[0].role == "assistant" else None

    # Editing

    def edit(self, about: Entry | None = None) -> None:
        """Puts a message into the prompt; what was being typed comes back afterwards."""
        app = self._app
        entry = about or next((e for e in reversed(app.chats.open.entries) if e.role == "user"), None)
        if entry is None or entry.role == CUT:
            app.hint("There is no message to edit.")
            return
        if self.editing is None:
            self.draft = app.prompt.text
        self.editing = entry
        self.choose(None)
        app.prompt.text = entry.text
        app.prompt.move_cursor(app.prompt.document.end)
        app.label()

    def leave_edit(self) -> bool:
        """Ends editing without a change. False when nothing was being edited."""
        if self.editing is None:
            return False
        self._leave_edit()
        return True

    def _leave_edit(self) -> None:
        self.editing = None
        self._app.prompt.text = self.draft
        self._app.prompt.move_cursor(self._app.prompt.document.end)
        self.draft = ""
        self._app.label()

    # Versions

    async def version(self, step: int, about: Entry | None = None) -> None:
        """Shows the next or an earlier version, and what followed it."""
        app, chat = self._app, self._app.chats.open
        entry = about or next((e for e in reversed(chat.entries) if len(e.versions) > 1), None)
        if entry is None or len(entry.versions) < 2:
            app.hint("There are no other versions.")
            return
        at = entry.versions.index(entry) + step
        if not 0 <= at < len(entry.versions):
            app.hint(f"This is {entry.place}.")
            return
        other = entry.versions[at]
        await chat.show(other)
        app.show_path()
        if about is not None:
            self.choose(other)
        app.hint(f"{other.place[0].upper()}{other.place[1:]}.")

    # Choosing

    async def key(self, what: str) -> None:
        """What a key means for the chosen message."""
        app, entry = self._app, self.chosen
        if entry is None or what == "leave":
            self.choose(None)
        elif what == "copy":
            app.copying.message(entry.told)
        elif what.isdigit():
            app.copying.block(entry.told, int(what))
        elif what == "thoughts":
            self.fold_thoughts()
        elif app.is_answering:
            app.hint(BUSY)
        elif what in ("earlier", "later"):
            await self.version(-1 if what == "earlier" else 1, entry)
        else:
            self.choose(None)
            if what == "on" and (missing := app.lack("continue")):
                app.hint(app.not_here(missing))
                return
            work = {"edit": self.edit, "again": self.again, "on": self.go_on}[what](entry)
            if work is not None:
                await work

    def fold_thoughts(self) -> None:
        """Opens or closes the thoughts of the chosen message, else the last ones."""
        app = self._app
        entries = [self.chosen] if self.chosen else app.chats.open.entries[::-1]
        view = next((entry.view for entry in entries if entry.view.has_thoughts), None)
        if view is None:
            app.hint("There are no thoughts here.")
        else:
            view.fold()
            app.transcript.redraw(view)

    @property
    def words(self) -> str:
        """What the prompt is for just now, "" for a new question."""
        return "" if self.editing is None else "editing: Enter takes it, Esc leaves it"

    def choose(self, entry: Entry | None) -> None:
        """The keys of the chosen message go to it until None is chosen."""
        app = self._app
        self.chosen = entry
        app.transcript.can_focus = entry is not None
        app.transcript.choose(None if entry is None else entry.view)
        (app.transcript if entry is not None else app.prompt).focus(scroll_visible=False)
        app.label()

    def move(self, step: int) -> None:
        """Chooses the last message first, then the one `step` further; beyond the last is the prompt."""
        entries = self._app.chats.open.entries
        if self.chosen is None or self.chosen not in entries:
            self.choose(entries[-1] if entries and step < 0 else None)
            return
        at = entries.index(self.chosen) + step
        self.choose(None if at >= len(entries) else entries[max(0, at)])
