"""Records of everyday facts: each fact as a sentence, and as a value of JSON with its schema."""

# Most values cannot be copied from their sentence: a date becomes `2024-03-05`, a time `15:30`, a number in
# words a number, a description one of the schema's choices, a statement true or false.

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["text", "number", "price", "date", "time", "choice", "boolean", "list"]
COPIED: Final = ("text", "list")
"""Kinds of values that stand in the sentence as they are."""


@dataclass(frozen=True)
class RecordFact:
    """One fact of a record."""

    key: str
    kind: Kind
    schema: Mapping[str, Any]
    value: Any
    sentence: str


Draw = Callable[[random.Random], tuple[Any, str]]
"""Draws a value of JSON, and the words for it."""


@dataclass(frozen=True)
class Field:
    """What a kind of record says about one key: how the value is drawn, and sentences with ``{}`` for its
    words."""

    key: str
    kind: Kind
    schema: Mapping[str, Any]
    draw: Draw
    sentences: tuple[str, ...]

    def fact(self, rng: random.Random) -> RecordFact:
        value, words = self.draw(rng)
        return RecordFact(self.key, self.kind, self.schema, value, rng.choice(self.sentences).format(words))


@dataclass(frozen=True)
class RecordKind:
    """A kind of record. Fields named in `inside` can be asked for in an object of their own, called
    `group`."""

    fields: tuple[Field, ...]
    group: str
    inside: tuple[str, str]


# Kinds of values

WORDS: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
FIRST_DAY: Final = datetime.date(2021, 1, 1).toordinal()
LAST_DAY: Final = datetime.date(2026, 12, 31).toordinal()
GIVEN: Final = (
    *("Ada", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo", "Irene", "Jonas", "Kira", "Liam"),
    *("Maria", "Noah", "Olga", "Pablo", "Ruth", "Samir", "Tara", "Victor", "Wendy", "Yusuf"),
)
FAMILY: Final = (
    *("Adams", "Becker", "Costa", "Dubois", "Evans", "Fischer", "Garcia", "Hansen", "Ito", "Jansen"),
    *("Keller", "Lopez", "Meyer", "Novak", "Okafor", "Patel", "Rossi", "Silva", "Tanaka", "Weber"),
)
CITIES: Final = (
    *("Athens", "Berlin", "Cairo", "Dublin", "Geneva", "Helsinki", "Lima", "Lisbon", "London", "Madrid"),
    *("Milan", "Nairobi", "Oslo", "Paris", "Prague", "Quito", "Rome", "Seoul", "Sydney", "Vienna"),
)


def text(key: str, words: Sequence[str], *sentences: str) -> Field:
    """One of some words, as it stands."""

    def draw(rng: random.Random) -> tuple[str, str]:
        word = rng.choice(words)
        return word, word

    return Field(key, "text", {"type": "string"}, draw, sentences)


def person(key: str, *sentences: str) -> Field:
    """A given name and a family name."""
    return text(
        key, [f"{given_name} {family_name}" for given_name in GIVEN for family_name in FAMILY], *sentences
    )


def number(key: str, low: int, high: int, *sentences: str) -> Field:
    """A whole number from `low` to `high`, at most 20, in words."""

    def draw(rng: random.Random) -> tuple[int, str]:
        value = rng.randint(low, high)
        return value, WORDS[value]

    return Field(key, "number", {"type": "integer", "minimum": 0}, draw, sentences)


def price(key: str, high: int, *sentences: str) -> Field:
    """An amount below `high` dollars, mostly with cents."""

    def draw(rng: random.Random) -> tuple[int | float, str]:
        dollars, cents = rng.randint(2, high - 1), rng.choice((0, 25, 50, 75))
        value = dollars + cents / 100 if cents else dollars
        spoken = f"{dollars} dollars and {cents} cents" if cents else f"{dollars} dollars"
        return value, rng.choice((f"${dollars}.{cents:02}", spoken))

    return Field(key, "price", {"type": "number", "minimum": 0}, draw, sentences)


def date(key: str, *sentences: str) -> Field:
    """A day, which the schema wants as ``YYYY-MM-DD``."""

    def draw(rng: random.Random) -> tuple[str, str]:
        day = datetime.date.fromordinal(rng.randint(FIRST_DAY, LAST_DAY))
        month = MONTHS[day.month - 1]
        spoken = (f"{month} {day.day}, {day.year}", f"{day.day} {month} {day.year}")
        return day.isoformat(), rng.choice(spoken)

    schema = {"type": "string", "format": "date", "description": "YYYY-MM-DD"}
    return Field(key, "date", schema, draw, sentences)


def time(key: str, *sentences: str) -> Field:
    """A time of day, which the schema wants on the 24-hour clock."""

    def draw(rng: random.Random) -> tuple[str, str]:
        hour, minute = rng.randint(6, 22), rng.choice((0, 15, 30, 45))
        half, on_clock = ("am" if hour < 12 else "pm"), (hour - 1) % 12 + 1
        return f"{hour:02}:{minute:02}", f"{on_clock}:{minute:02} {half}"

    schema = {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$", "description": "24-hour HH:MM"}
    return Field(key, "time", schema, draw, sentences)


def choice(key: str, **options: tuple[str, ...]) -> Field:
    """One of the schema's choices, each with whole sentences that describe it."""

    def draw(rng: random.Random) -> tuple[str, str]:
        option = rng.choice([*options])
        return option, rng.choice(options[option])

    return Field(key, "choice", {"enum": [*options]}, draw, ("{}",))


def boolean(key: str, true: tuple[str, ...], false: tuple[str, ...]) -> Field:
    """True or false, as whole sentences."""

    def draw(rng: random.Random) -> tuple[bool, str]:
        value = rng.random() < 0.5
        return value, rng.choice(true if value else false)

    return Field(key, "boolean", {"type": "boolean"}, draw, ("{}",))


def several(key: str, words: Sequence[str], *sentences: str) -> Field:
    """Two or three different words, in the order of the text."""

    def draw(rng: random.Random) -> tuple[list[str], str]:
        value = rng.sample(words, rng.randint(2, 3))
        return value, f"{', '.join(value[:-1])} and {value[-1]}"

    schema = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3}
    return Field(key, "list", schema, draw, sentences)


# Kinds of records

RECORDS: Final[Mapping[str, RecordKind]] = {
    "order": RecordKind(
        (
            person("name", "{} placed this order.", "The order came from {}."),
            text("city", CITIES, "It goes to {}.", "The parcel must be sent to {}."),
            text(
                "item",
                ("blankets", "desk lamps", "tea cups", "notebooks", "umbrellas", "backpacks", "candles"),
                *("The shop has to pack {}.", "What was ordered are {}."),
            ),
            number("quantity", 2, 20, "The customer wants {} pieces.", "There are {} pieces in the order."),
            price("total", 200, "The bill comes to {}.", "Everything together costs {}."),
            date("ordered_on", "The order was placed on {}.", "It reached the shop on {}."),
            choice(
                "shipping",
                express=(
                    "The customer paid extra to have it tomorrow.",
                    "It has to be there as fast as possible.",
                ),
                standard=("Ordinary mail is fast enough.", "There is no hurry, the usual mail will do."),
                pickup=("The customer will fetch it at the shop.", "Nothing is sent; the customer comes by."),
            ),
            boolean(
                "paid",
                ("The bill has been settled.", "The shop has already received the money."),
                ("The bill is still open.", "The shop is still waiting for the money."),
            ),
            several("colors", ("red", "blue", "green", "black", "white", "gray"), "The colors are {}."),
        ),
        group="customer",
        inside=("name", "city"),
    ),
    "person": RecordKind(
        (
            person("name", "The new member is called {}.", "{} has joined the club."),
            text("city", CITIES, "Home is {}.", "The member lives in {}."),
            date("birthday", "The member was born on {}.", "The birth certificate says {}."),
            number("children", 0, 6, "The number of children is {}.", "When asked about children: {}."),
            choice(
                "occupation",
                student=("Right now it is all lectures and exams.", "The member still goes to university."),
                employed=("The member works for a company.", "A firm pays the member a salary."),
                retired=(
                    "After forty years of work the member draws a pension.",
                    "Working life is over, and there is a pension.",
                ),
            ),
            boolean(
                "driver",
                ("The member may drive a car.", "The member has a driving license."),
                ("The member may not drive a car.", "The member never got a driving license."),
            ),
            time("call_at", "The best time to call is {}.", "Phone calls are welcome at {}."),
            several(
                "languages",
                ("English", "French", "German", "Greek", "Hindi", "Italian", "Polish", "Spanish"),
                *("The member speaks {}.", "Languages at home are {}."),
            ),
        ),
        group="contact",
        inside=("name", "city"),
    ),
    "event": RecordKind(
        (
            text(
                "title",
                ("Spring Fair", "Jazz Night", "Open Studio", "Book Market", "Science Day", "Film Week"),
                *("The event is called {}.", "Posters for the {} are up."),
            ),
            text("city", CITIES, "It takes place in {}.", "This year {} is the host."),
            text(
                "hall",
                ("Maple Hall", "Room 12", "the Old Mill", "Harbor House", "the Town Library"),
                *("Visitors meet in {}.", "The organizers have rented {}."),
            ),
            date("day", "It is held on {}.", "The day is {}."),
            time("starts_at", "Doors open at {}.", "It begins at {}."),
            number("speakers", 2, 20, "There will be {} speakers.", "The program lists {} speakers."),
            price("fee", 60, "A ticket costs {}.", "Visitors pay {} at the door."),
            choice(
                "audience",
                children=(
                    "It is meant for boys and girls under twelve.",
                    "Only the little ones are invited.",
                ),
                adults=("Nobody under eighteen may come in.", "It is not for minors."),
                everyone=("Young and old are welcome.", "People of any age may come."),
            ),
            boolean(
                "outdoors",
                ("It happens in the open air.", "Everything takes place under the sky."),
                ("All of it happens under a roof.", "Nothing takes place outside."),
            ),
        ),
        group="venue",
        inside=("hall", "city"),
    ),
    "trip": RecordKind(
        (
            text("origin", CITIES[:10], "The traveler leaves from {}.", "The trip begins in {}."),
            text("destination", CITIES[10:], "The goal is {}.", "The traveler wants to get to {}."),
            person("traveler", "The ticket is for {}.", "{} is the one who travels."),
            date("date", "Departure is on {}.", "The trip was booked for {}."),
            time("departs_at", "It leaves at {}.", "The traveler has to be there at {}."),
            number("bags", 0, 6, "The number of bags is {}.", "Bags to check in: {}."),
            price("fare", 400, "The fare is {}.", "The ticket was sold for {}."),
            choice(
                "vehicle",
                train=("The way there is by rail.", "The traveler goes to the railway station first."),
                plane=("The traveler flies.", "It starts at the airport."),
                ship=("The way there is across the sea.", "The traveler goes aboard at the harbor."),
            ),
            boolean(
                "returning",
                ("The traveler comes back a week later.", "It is a journey there and back."),
                ("The traveler will not come back.", "It is a journey one way only."),
            ),
        ),
        group="route",
        inside=("origin", "destination"),
    ),
    "loan": RecordKind(
        (
            text(
                "title",
                ("Silent Rivers", "The Glass Tower", "Winter Bread", "A Map of Stars", "Nine Doors"),
                *("The book is {}.", "Somebody took {} home."),
            ),
            person("author", "It was written by {}.", "Its author is {}."),
            person("reader", "The library lent it to {}.", "{} has borrowed it."),
            date("due", "It has to be back by {}.", "The last day of the loan is {}."),
            number("renewals", 0, 5, "So far the number of renewals is {}.", "Renewals until now: {}."),
            price("fine", 30, "Fines amount to {}.", "The reader owes {}."),
            choice(
                "condition",
                good=("The book looks as if nobody had ever opened it.", "Not a single page has a mark."),
                worn=("The corners are bent from many hands.", "It shows that many have read it."),
                damaged=("Several pages are torn out.", "Water has ruined the cover."),
            ),
            boolean(
                "returned",
                ("The book is on its shelf again.", "The reader has brought it back."),
                ("The reader still has it.", "Its place on the shelf is empty."),
            ),
            several(
                "genres",
                ("fantasy", "history", "humor", "mystery", "poetry", "romance"),
                *("The catalog lists it under {}.",),
            ),
        ),
        group="book",
        inside=("title", "author"),
    ),
}
