"""Words that the templates of prompts are filled with, from `words.txt`."""

from __future__ import annotations

from pathlib import Path


def _lists() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
        elif line and not line.startswith("#"):
            found.setdefault(name, []).append(line)
    return {name: tuple(words) for name, words in found.items()}


_WORDS = _lists()
TOPICS = _WORDS["topics"]
PLACES = _WORDS["places"]
PEOPLE = _WORDS["people"]
DISHES = _WORDS["dishes"]
SKILLS = _WORDS["skills"]
PROBLEMS = _WORDS["problems"]
HEROES = _WORDS["heroes"]
SETTINGS = _WORDS["settings"]
THINGS = _WORDS["things"]
PROGRAMS = _WORDS["programs"]
LANGUAGES = _WORDS["languages"]
CONCEPTS = _WORDS["concepts"]
SENTENCES = _WORDS["sentences"]
TONGUES = _WORDS["tongues"]
DRAFTS = _WORDS["drafts"]
PASSAGES = _WORDS["passages"]
NAMES = _WORDS["names"]
GOODS = _WORDS["goods"]
JOBS = _WORDS["jobs"]
OCCASIONS = _WORDS["occasions"]
FOLLOW_UPS = _WORDS["follow-ups"]
SYSTEMS = _WORDS["systems"]
