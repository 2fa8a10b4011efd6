"""A synthetic population that chats: no real text, any number of users, and enough structure to be worth learning.

People share a grammar and differ in habits: what they talk about, which of the choices they prefer, how they greet,
hesitate and end a message. Whatever they write comes from the tables below, so the vocabulary is public.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from string import Formatter

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import tokenise
from sottovoce.errors import SottoError


def _choices(text: str) -> tuple[str, ...]:
    return tuple(choice.strip() for choice in text.split("|"))


# Longer choices keep words together that belong together: after "chicken curry" comes "with rice".
SLOTS = {
    # time and people, used everywhere
    "day": _choices("monday | tuesday | wednesday | thursday | friday | saturday | sunday"),
    "when": _choices("today | tonight | tomorrow | this weekend | next week | in the morning | after work | later"),
    "past": _choices("yesterday | last night | last weekend | this morning | on the way home | last summer"),
    "hour": _choices("6 | 7 | 8 | 9 | half past 5 | half past 7 | quarter to 8 | 10 | noon"),
    "who": _choices("my sister | my brother | my mum | my dad | my cousin | my best friend | my neighbour | my boss"),
    "we": _choices("we | the kids and i | my sister and i | my flatmate and i | the two of us"),
    "good": _choices("great | so good | really nice | lovely | amazing | better than i expected | not bad at all"),
    "bad": _choices("awful | a bit boring | too loud | way too expensive | a complete mess | worse than last time"),
    # food
    "dish": _choices(
        "pizza with extra cheese | chicken curry with rice | tomato soup with fresh bread | fish and chips "
        "| a veggie burger | pancakes with maple syrup | mushroom pasta with garlic | tacos with hot sauce "
        "| a big green salad | noodle soup"
    ),
    "eatery": _choices(
        "the italian place on the corner | the noodle bar by the station | the new burger place "
        "| the little cafe next door | the thai restaurant in the old town | the bakery near the park"
    ),
    "drink": _choices(
        "a cup of tea | a strong coffee | a glass of red wine | an orange juice | a cold beer | hot chocolate"
    ),
    # sport
    "sport": _choices("football | tennis | basketball | volleyball | table tennis | hockey"),
    "team": _choices("the blues | the reds | the tigers | the eagles | the city team | our local club"),
    "score": _choices(
        "two to one | three to nil | by a single point | in extra time | on penalties | after a late goal"
    ),
    "training": _choices(
        "going for a run along the river | swimming before breakfast | lifting weights at the gym | doing yoga at home "
        "| cycling to the lake and back | climbing at the indoor wall"
    ),
    # travel
    "city": _choices("lisbon | rome | paris | berlin | london | vienna | oslo | madrid | dublin | prague"),
    "ride": _choices("the early train | the night bus | a cheap flight | the ferry | a rented car"),
    "sight": _choices(
        "the old castle | the art museum | the fish market | the botanical garden | the view from the tower"
    ),
    "stay": _choices(
        "a small hotel by the sea | a room in the old town | a cabin in the mountains | a flat near the harbour"
    ),
    # work and study
    "task": _choices(
        "the weekly report | the slides for the meeting | the budget for next year | the code review | the final exam "
        "| the essay for my history class | the customer survey"
    ),
    "office": _choices(
        "the meeting | the call with the client | the morning lecture | the team lunch | the job interview"
    ),
    # music and film
    "artist": _choices("the silver owls | paper lanterns | the midnight choir | velvet harbour | the broken radios"),
    "music": _choices("jazz | folk music | old soul records | heavy metal | piano music | techno"),
    "film": _choices(
        "the new space movie | that crime series | the cooking show | the documentary about whales | a scary movie"
    ),
    # weather and garden
    "weather": _choices(
        "raining cats and dogs | sunny and warm | freezing cold | windy and grey | snowing again | far too hot to sleep"
    ),
    "wear": _choices("your umbrella | a warm coat | your sun hat | rubber boots | an extra jumper"),
    "plant": _choices("the tomatoes | the roses | the herbs on the balcony | the apple tree | the sunflowers"),
    # home, pets and things
    "pet": _choices("the cat | the dog | the puppy | the old parrot | the neighbour's kitten | our rabbit"),
    "mischief": _choices(
        "ate my breakfast | slept on my keyboard | chased a squirrel up a tree | hid under the sofa "
        "| chewed my left shoe | knocked over the flowers"
    ),
    "chore": _choices("the laundry | the dishes | the shopping | the windows | the tax forms | the broken shelf"),
    "device": _choices("my phone | my laptop | the printer | the tv | my headphones | the coffee machine"),
    "fault": _choices(
        "keeps turning itself off | makes a strange noise | has a cracked screen | will not connect to the internet "
        "| needs a new battery | is slow as a snail"
    ),
    "event": _choices(
        "a birthday party | a wedding | a picnic by the lake | a game night | a barbecue | a school play"
    ),
    "gift": _choices("a box of chocolates | a bunch of flowers | a board game | a cookbook | tickets for a concert"),
}

TOPICS = {
    "food": _choices(
        "i am cooking {dish} {when} | we had {dish} at {eatery} {past} and it was {good} "
        "| do you want to get {dish} {when} ? | let's meet at {eatery} at {hour} "
        "| i could really use {drink} right now | {who} makes the best {dish} in the world "
        "| i tried {eatery} {past} but it was {bad}"
    ),
    "sport": _choices(
        "did you see the {sport} game {past} ? {team} won {score} | {team} lost {score} again and i am so sad "
        "| i am {training} {when} , do you want to come along ? | {who} wants to play {sport} on {day} at {hour} "
        "| i started {training} and my legs hurt | we have two tickets for {team} on {day}"
    ),
    "travel": _choices(
        "we are taking {ride} to {city} on {day} | have you ever been to {city} ? i want to see {sight} "
        "| {sight} in {city} was {good} | i booked {stay} for the holidays | {ride} to {city} was {bad} "
        "| {who} is going to {city} {when} and i am so jealous | we stayed in {stay} {past} and it was {good}"
    ),
    "work": _choices(
        "i still have to finish {task} before {day} | can you send me {task} {when} ? | {office} was {bad} "
        "| {office} starts at {hour} on {day} , don't be late | i worked on {task} until {hour} and i am so tired "
        "| my boss moved {office} to {day} | {task} is finally done , time for {drink}"
    ),
    "music": _choices(
        "have you heard the new album by {artist} ? it is {good} | {artist} are playing in {city} on {day} "
        "| i have been listening to {music} all day | {who} gave me tickets for {artist} "
        "| here is the song i told you about <url> | i am learning to play {music} on the guitar"
    ),
    "films": _choices(
        "let's watch {film} {when} | i fell asleep during {film} {past} | {film} was {good} , you have to watch it "
        "| {who} says that {film} is {bad} | {film} starts at {hour} , should i save you a seat ?"
    ),
    "weather": _choices(
        "it is {weather} here , don't forget {wear} | they say that it will be {weather} on {day} "
        "| it was {weather} {past} so {we} stayed at home | i hope that {plant} will be fine , it is {weather} "
        "| i have to water {plant} {when} | {plant} are growing like crazy this year"
    ),
    "family": _choices(
        "{who} is coming over on {day} at {hour} | i am taking {who} to {eatery} {when} "
        "| i have to call {who} {when} | {who} is having {event} on {day} , what should i bring ? "
        "| i got {gift} for {who} | {who} sends you lots of love | {who} says hi and asks about {pet}"
    ),
    "pets": _choices(
        "{pet} {mischief} {past} | i can't believe that {pet} {mischief} again | {pet} is sleeping on my lap right now "
        "| i have to take {pet} to the vet on {day} | can you feed {pet} while we are in {city} ? "
        "| {who} wants to get a puppy , but {pet} would not like it"
    ),
    "plans": _choices(
        "are you free on {day} ? {we} are having {event} | what are you doing {when} ? "
        "| {we} are going to {event} {when} , do you want to come along ? "
        "| let's meet at {hour} in front of the station | {event} {past} was {good} "
        "| i will bring {gift} and {drink} to {event} | call me at <phone> if you get lost"
    ),
    "things": _choices(
        "{device} {fault} again , do you know what to do ? | i need to buy a new one because {device} {fault} "
        "| i spent all day on {chore} | {we} still have to do {chore} before {day} | i finally fixed {device} {past} "
        "| {who} says that {device} {fault} too | send it to <email> please , {device} {fault}"
    ),
}

GREETINGS = _choices("hey | hi | hello | good morning | hiya | hey there | morning | hello my friend")
FILLERS = _choices("well | so | you know | honestly | by the way | anyway | to be honest | guess what")
ANSWERS = _choices(
    "sounds good to me | yes of course | i think so too | no way | that is so funny | oh no , i am sorry to hear that "
    "| i am on my way | see you at {hour} then | ok , see you on {day} | thank you so much for {gift} "
    "| happy birthday <user>"
)
ENDINGS = _choices("| please | thanks a lot | thanks in advance | haha | lol | i guess | for sure | can't wait")
GOODBYES = _choices(
    "see you soon | take care | talk to you later | love you | have a nice day | good night | bye for now"
)
STOPS = _choices(". | . | ! | !! | ... | | :) | ;)")


class _Person:
    """One user's habits; looking up a slot draws from it, mostly what this person prefers."""

    def __init__(self, rng: Random) -> None:
        self.draw = rng.random
        self.loved: dict[str, tuple[str, str]] = {}
        topics = list(TOPICS.values())
        rng.shuffle(topics)
        # Three of four messages are about three favourite subjects.
        self.topics = (topics[0],) * 12 + (topics[1],) * 8 + (topics[2],) * 6 + tuple(topics[3:])
        self.greeting, self.filler = self.pick(GREETINGS), self.pick(FILLERS)
        self.ending, self.goodbye, self.stop = self.pick(ENDINGS), self.pick(GOODBYES), self.pick(STOPS)
        self.greets, self.fills, self.ends, self.leaves = (self.draw() * 0.5 for _ in range(4))
        self.capitals = self.draw() < 0.5

    def pick(self, choices: tuple[str, ...]) -> str:
        return choices[int(self.draw() * len(choices))]

    def __getitem__(self, slot: str) -> str:
        choices = SLOTS[slot]
        if slot not in self.loved:
            self.loved[slot] = (self.pick(choices), self.pick(choices))
        chance = self.draw()
        if chance < 0.75:
            return self.loved[slot][chance > 0.5]
        return self.pick(choices)

    def message(self) -> str:
        answer = self.draw() < 0.15
        parts = [self.pick(ANSWERS if answer else self.pick_topic()).format_map(self)]
        if self.draw() < self.fills:
            parts.insert(0, f"{self.filler} ,")
        if self.draw() < self.greets:
            parts.insert(0, f"{self.greeting} ,")
        if not parts[-1].endswith("?"):
            if self.draw() < self.ends and self.ending:
                parts.append(f", {self.ending}")
            parts.append(self.stop)
        if self.draw() < self.leaves:
            parts.append(f"{self.goodbye} {self.stop}")
        text = " ".join(parts).replace(" ,", ",").replace(" .", ".").replace(" !", "!").replace(" ?", "?").strip()
        return text[0].upper() + text[1:] if self.capitals else text

    def pick_topic(self) -> tuple[str, ...]:
        return self.topics[int(self.draw() * len(self.topics))]


def demo_texts(seed: int, user: int, tokens: tuple[int, int] = (120, 240)) -> list[str]:
    """The messages of one user, as many as make a number of tokens drawn from the range (BOS and EOS counted).

    They follow from the seed and the user's number alone, so that a larger population extends a smaller one.
    """
    rng = Random(f"sottovoce demo {seed} {user}")
    person = _Person(rng)
    wanted = rng.randint(*tokens)
    texts: list[str] = []
    while wanted > 0:
        texts.append(person.message())
        wanted -= len(tokenise(texts[-1])) + 2
    return texts


def write_demo(path: str | Path, users: int, seed: int, tokens: tuple[int, int] = (120, 240)) -> None:
    """Write a synthetic population as JSON lines with the fields `user` and `text`."""
    path = Path(path)
    if users < 1:
        raise SottoError(f"users={users} must be at least 1; it is the size of the population")
    if not 1 <= tokens[0] <= tokens[1]:
        raise SottoError(f"tokens={tokens} must be a range such as (120, 240); it is the text of one user")
    if path.suffix != ".jsonl":
        raise SottoError(f"{path} must end in .jsonl, the format of the demo corpus")
    if path.exists():
        raise SottoError(f"{path} exists already and is not overwritten; name a new file")
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for user in range(users):
                name = f"person-{user:07d}"
                for text in demo_texts(seed, user, tokens):
                    file.write(json.dumps({"user": name, "text": text}) + "\n")
        os.replace(partial, path)
    except OSError as error:
        raise SottoError(f"cannot write {path} ({error.strerror}); check free space and permissions") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def demo_vocabulary() -> Vocabulary:
    """Every word that the grammar can produce, in the order of the alphabet."""
    patterns = (choice for choices in TOPICS.values() for choice in choices)
    tables = (*SLOTS.values(), GREETINGS, FILLERS, ANSWERS, ENDINGS, GOODBYES)
    words: set[str] = set()
    for phrase in (*patterns, *(choice for table in tables for choice in table)):
        for fixed, *_ in Formatter().parse(phrase):
            words.update(tokenise(fixed))
    return Vocabulary.from_words(sorted(words))
