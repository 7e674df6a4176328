"""From what a client asks for to what the decode loop is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.request import Request, Sampling
from engine.schema import behind_thoughts
from engine.thoughts import closing_of

if TYPE_CHECKING:
    from engine.call import Call
    from engine.request import Speculation
    from engine.session import Session


def prompt_of(session: Session, call: Call) -> tuple[tuple[int, ...], int]:
    """The prompt of `call`, and how many tokens at its end are the beginning of the answer."""
    if call.prompt is not None:
        return session.dialogue.tokenize_text(call.prompt), 0
    if call.continues:
        return session.dialogue.tokenize_continued(call.messages, thinking=call.thinking, effort=call.effort)
    prompt = session.dialogue.tokenize_chat(
        call.messages, thinking=call.thinking, effort=call.effort, tools=call.tools
    )
    return prompt, 0


def request_of(session: Session, call: Call, defaults: Speculation) -> tuple[Request, str]:
    """The request, and the tag of thoughts that its prompt ends with, "" for none."""
    prompt, continued = prompt_of(session, call)
    opens = "" if continued else session.dialogue.opens_thoughts(prompt)
    request = Request(
        prompt=prompt,
        sampling=Sampling(**{**session.info.sampling, **call.sampling}),
        speculation=call.speculation_over(defaults),
        max_tokens=call.max_tokens,
        stop=call.stop,
        ignore_eos=call.ignore_eos,
        continued=continued,
        grammar=_grammar(session, call, opens),
        top_logprobs=call.top_logprobs,
        in_dialect=call.prompt is None,
    )
    return request, opens


def _grammar(session: Session, call: Call, opens: str) -> str:
    """Rules for the whole answer; those of `call` are of what follows the thoughts."""
    if not call.grammar or call.prompt is not None:
        return call.grammar
    if (channels := session.dialogue.channels) is not None:
        forced = call.tools is not None and call.tools.forced
        return channels.call_rules(call.tools) if call.tools and forced else channels.rules(call.grammar)
    return behind_thoughts(call.grammar, closing_of(opens)) if opens else call.grammar
