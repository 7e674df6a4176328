"""Prompts of our own, from single words to conversations, that the teacher answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from training import words as w

BY_HAND = Path(__file__).with_name("prompts.txt")

_HELD_OUT = 25  # one prompt in so many


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a person says, turn by turn, under which system turn, and how the teacher draws its answers."""

    turns: tuple[str, ...]
    system: str
    temperature: float

    @property
    def held_out(self) -> bool:
        """Whether it is kept for measuring. It hangs on the first turn alone, so no conversation is on
        both sides."""
        digest = hashlib.sha256(self.turns[0].casefold().encode()).digest()
        return int.from_bytes(digest[:4], "big") % _HELD_OUT == 0


def prompts(seed: int) -> list[Prompt]:
    """All prompts, distinct, in an order that hangs on the seed."""
    random = Random(seed)
    seen: set[str] = set()
    found = []
    for turns in [*by_hand(), *_from_templates(random)]:
        key = " || ".join(turns).casefold()
        if key in seen:
            continue
        seen.add(key)
        if len(turns) == 1 and random.random() < 0.22:
            turns = (*turns, *random.sample(w.FOLLOW_UPS, random.choice((1, 1, 2))))
        system = random.choices(("own", "none", random.choice(w.SYSTEMS)), (0.65, 0.15, 0.2))[0]
        found.append(Prompt(turns, system, random.choices((0.8, 0.3, 0.0), (0.75, 0.15, 0.1))[0]))
    random.shuffle(found)
    return found


def by_hand() -> list[tuple[str, ...]]:
    lines = BY_HAND.read_text(encoding="utf-8").splitlines()
    return [
        tuple(turn.strip() for turn in line.split("||")) for line in lines if line.strip() and line[0] != "#"
    ]


def _from_templates(random: Random) -> Iterator[tuple[str, ...]]:
    """Every filled template once; where a template takes two lists, a part of their pairs."""
    for made in (_about_topics, _about_places, _about_life, _stories, _code, _language, _sums, _messages):
        yield from ((text,) for text in made(random))


_TOPIC = (
    "What is interesting about {}?",
    "Explain {} to a child.",
    "Tell me three facts about {}.",
    "Why do {} matter?",
    "Write a short paragraph about {}.",
    "How would you explain {} in one sentence?",
    "What should I know about {}?",
    "Give me a quiz question about {} with its answer.",
    "What are common mistakes people make about {}?",
    "Describe {} in simple words.",
    "I am writing a report about {}. How should I start?",
    "List five words related to {}.",
)


def _about_topics(random: Random) -> Iterator[str]:
    for topic in w.TOPICS:
        yield from (template.format(topic) for template in random.sample(_TOPIC, 9))
    for person in w.PEOPLE:
        yield f"Who was {person}?"
        yield f"What is {person} known for?"
        yield f"What can we learn from {person}?"
        yield f"Write two sentences about {person}."
    for _ in range(350):
        one, other = random.sample(w.TOPICS, 2)
        form = random.choice(
            ("What do {} and {} have in common?", "Compare {} and {}.", "Which came first, {} or {}?")
        )
        yield form.format(one, other)


def _about_places(random: Random) -> Iterator[str]:
    for place in w.PLACES:
        yield f"What should I see in {place}?"
        yield f"Plan a weekend in {place}."
        yield f"What do people eat in {place}?"
        yield f"When is the best time to visit {place}?"
        yield f"Write a postcard from {place}."
        yield f"Is {place} expensive for tourists?"
        yield f"What should I pack for {random.choice(('three days', 'a week', 'two weeks'))} in {place}?"
    for _ in range(120):
        one, other = random.sample(w.PLACES, 2)
        yield f"Should I travel to {one} or to {other}?"


def _about_life(random: Random) -> Iterator[str]:
    for dish in w.DISHES:
        yield f"How do I make {dish}?"
        yield f"What do I need for {dish}?"
        yield f"Give me a simple recipe for {dish} for {random.randint(2, 8)} people."
        yield f"What goes well with {dish}?"
    for skill in w.SKILLS:
        yield f"How do I get better at {skill}?"
        yield f"I want to start {skill}. Where do I begin?"
        yield f"Make a plan for {skill} with {random.choice((10, 15, 20, 30, 45))} minutes a day."
        yield f"Why do people enjoy {skill}?"
        yield f"Give me three tips for {skill}."
    for problem in w.PROBLEMS:
        said = problem[0].upper() + problem[1:]
        yield f"{said}. What can I do?"
        yield f"{said}. Do you have any advice?"
        yield f"Help! {said}."
        yield f"Why is it that {problem}?"
        yield f"{said}. Give me a step-by-step plan."
    for job in w.JOBS:
        yield f"What does a {job} do all day?" if job[0] not in "aeiou" else f"What does an {job} do all day?"
        yield f"How do I become a good {job}?"
        yield f"What are the best and the worst parts of working as a {job}?"
        yield f"Ask me five interview questions for a job as a {job}."
        yield f"Write a short job advertisement for a {job} in {random.choice(w.PLACES)}."
    for what in (
        "party",
        "picnic",
        "meeting",
        "garden",
        "holiday",
        "workout",
        "birthday",
        "interview",
        "exam",
        "move",
    ):
        for count in (3, 5, 7, 10):
            yield f"List {count} things to think of for a {what}."


def _stories(random: Random) -> Iterator[str]:
    for hero in w.HEROES:
        for setting in random.sample(w.SETTINGS, 8):
            form = random.choice(
                (
                    "Write a short story about {} {}.",
                    "Tell me a story about {} {}.",
                    "Begin a story about {} {}.",
                    "Write four sentences about {} {}.",
                    "Write a funny story about {} {}.",
                )
            )
            yield form.format(hero, setting)
    for thing in w.THINGS:
        for form in ("poem", "haiku", "short rhyme", "metaphor", "song verse", "riddle"):
            yield f"Write a {form} about {thing}."
    for _ in range(150):
        one, other = random.sample(w.JOBS, 2)
        yield f"Write a short dialogue between a {one} and a {other} about {random.choice(w.TOPICS)}."


def _code(random: Random) -> Iterator[str]:
    for program in w.PROGRAMS:
        for language in sorted(set(w.LANGUAGES)):
            if language == "Python" or random.random() < 0.4:
                yield f"Write a {language} function that {program}."
        yield f"Write a Python program that {program}, with comments."
        yield f"How would you test a function that {program}?"
        yield f"Explain step by step how to write code that {program}."
    for concept in w.CONCEPTS:
        yield f"What is {concept}?"
        yield f"Explain {concept} with an example."
        yield f"When would I use {concept}?"
        yield f"What is {concept} in {random.choice(w.LANGUAGES)}?"
        yield f"Explain {concept} to someone who has never programmed."
    for _ in range(150):
        numbers = [random.randint(1, 30) for _ in range(random.randint(3, 6))]
        yield random.choice(
            (
                "What does this Python code print? print(sorted({0}))",
                "What does sum({0}) return in Python?",
                "What does this print? for x in {0}: print(x * 2)",
                "What is max({0}) - min({0}) in Python?",
                "Write Python code that finds the median of {0}.",
            )
        ).format(numbers)


def _language(_: Random) -> Iterator[str]:
    for sentence in w.SENTENCES:
        for tongue in w.TONGUES:
            yield f'Translate into {tongue}: "{sentence}"'
        yield f'Write this sentence more politely: "{sentence}"'
        yield f'Put this into the past tense: "{sentence}"'
        yield f'What could someone answer to "{sentence}"?'
    for draft in w.DRAFTS:
        for form in (
            "Correct the grammar: {}",
            "Rewrite this more formally: {}",
            "Rewrite this more clearly: {}",
            "Make this friendlier: {}",
            "Turn this into a short email: {}",
            "Rewrite this in your own words: {}",
        ):
            yield form.format(draft)
    for passage in w.PASSAGES:
        for form in (
            "Summarise this text in one sentence: {}",
            "Summarise: {}",
            "What is this text about? {}",
            "Give this text a title: {}",
            "List the main points of this text: {}",
            "Rewrite this for a child: {}",
            "Write three questions about this text: {}",
            "What can we conclude from this? {}",
            "{}\n\nTL;DR",
            "{}\n\nWhat are the key facts?",
            "Turn this text into bullet points:\n\n{}",
        ):
            yield form.format(passage)
    for topic in w.TOPICS[::2]:
        yield f'Use the word "{topic.split()[-1]}" in a sentence.'


def _sums(random: Random) -> Iterator[str]:
    for _ in range(420):
        a, b, c = (random.randint(2, 60) for _ in "abc")
        yield random.choice(
            (
                f"What is {a} + {b}?",
                f"What is {a} - {min(a, b)}?",
                f"What is {a} times {b % 13}?",
                f"What is {5 * (c % 20)}% of {10 * a}?",
                f"What is {a * (c % 9 + 2)} divided by {c % 9 + 2}?",
                f"Which is larger, {a} or {b}?",
                f"What is half of {2 * c}?",
                f"Add {a}, {b} and {c}.",
                f"Is {a} a prime number?",
                f"What is {a % 15} squared?",
                f"Round {a}.{b} to the nearest whole number.",
                f"Convert {a} kilometres to metres.",
                f"How many seconds are in {b} minutes?",
                f"Solve for x: x + {a} = {a + b}",
                f"Solve for x: {c % 9 + 2}x = {(c % 9 + 2) * (b % 12)}",
            )
        )
    for _ in range(330):
        one, other = random.sample(w.NAMES, 2)
        goods, a, b, c = (
            random.choice(w.GOODS),
            random.randint(4, 40),
            random.randint(2, 12),
            random.randint(2, 9),
        )
        yield random.choice(
            (
                f"{one} has {a} {goods} and gives {min(a - 1, b)} to {other}. How many are left?",
                f"{one} buys {b} {goods} for {c} dollars each. How much does {one} pay?",
                f"{one} has {a} {goods} and {other} has {b} more than that. How many do they have together?",
                f"{one} shares {b * c} {goods} equally among {c} friends. How many does each friend get?",
                f"{one} finds {b} {goods} every day for {c} days. How many is that?",
                f"{one} is {a} years old. {other} is {b} years older. How old is {other}?",
                f"{one} drives {a * 5} km in {c} hours. How fast is that?",
                f"{one} reads {b * 2} pages a day. How many days does a book of {b * 2 * c} pages take?",
            )
        )


def _messages(random: Random) -> Iterator[str]:
    for occasion in w.OCCASIONS:
        for form in (
            "an email",
            "a short message",
            "a polite note",
            "a two-line text message",
            "a formal letter",
        ):
            yield f"Write {form} about {occasion}."
        yield f"What should I say about {occasion}?"
        one, other = random.sample(w.NAMES, 2)
        yield f"Write an email to {one} about {occasion}. Sign it as {other}."
    for name in w.NAMES:
        for mood in ("sad", "happy", "tired", "angry", "nervous", "proud"):
            yield f"My friend {name} is {mood}. What should I write?"
