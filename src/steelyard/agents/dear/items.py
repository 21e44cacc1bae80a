"""Twenty four-option questions written for this project: facts that any reader can check.

They test the machinery of a debate with a real model; with 20 items one answer is 5 points, so they carry no verdict.
The right answers are spread evenly over the four places (five each), and a back end shuffles the places anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.errors import InputError


@dataclass(frozen=True)
class Item:
    """A question with options.

    Attributes:
        id: Stable name.
        question: Its text.
        options: Possible answers, all different.
        answer: Place of the right one in ``options``.
    """

    id: str
    question: str
    options: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.options) <= 26 or len(set(self.options)) != len(self.options):
            raise InputError(f"item {self.id!r} must have 2 to 26 different options, got {len(self.options)}.")
        if not 0 <= self.answer < len(self.options):
            raise InputError(f"item {self.id!r}: answer must be the place of an option, got {self.answer}.")


_TABLE = """
capital-japan | Which city is the capital of Japan? | *Tokyo | Kyoto | Osaka | Nagoya
red-planet | Which planet is known as the Red Planet? | Venus | *Mars | Jupiter | Saturn
water-formula | Which two elements make up water? | Oxygen and carbon | Hydrogen and carbon | *Hydrogen and oxygen | \
Nitrogen and oxygen
spider-legs | How many legs does a spider have? | Six | Four | Ten | *Eight
largest-ocean | Which is the largest ocean on Earth? | *Pacific | Atlantic | Indian | Arctic
hamlet-author | Who wrote the play Hamlet? | Charles Dickens | *William Shakespeare | Jane Austen | Oscar Wilde
boiling-celsius | At sea level, at how many degrees Celsius does water boil? | 50 | 80 | *100 | 212
heart-function | Which organ pumps blood through the human body? | Liver | Lung | Kidney | *Heart
square-root-81 | What is the square root of 81? | *9 | 8 | 18 | 27
bee-product | Which food do bees make? | Milk | *Honey | Cheese | Butter
capital-australia | Which city is the capital of Australia? | Sydney | Melbourne | *Canberra | Perth
largest-mammal | Which is the largest mammal? | Elephant | Giraffe | Hippopotamus | *Blue whale
photosynthesis-gas | Which gas do plants take in for photosynthesis? | *Carbon dioxide | Oxygen | Helium | Hydrogen
mona-lisa | Who painted the Mona Lisa? | Vincent van Gogh | *Leonardo da Vinci | Pablo Picasso | Claude Monet
days-leap-year | How many days does a leap year have? | 364 | 365 | *366 | 367
gold-symbol | Which is the chemical symbol of gold? | Go | Gd | Ag | *Au
great-wall | In which country is the Great Wall that is more than 10,000 km long? | *China | India | Egypt | Mexico
prime-number | Which of these numbers is a prime number? | 15 | *17 | 21 | 27
nearest-star | Which star is nearest to the Earth? | Sirius | Polaris | *The Sun | Betelgeuse
frozen-water | What is water called when it is frozen? | Steam | Fog | Dew | *Ice
"""


def _parsed(line: str) -> Item:
    name, question, *options = (part.strip() for part in line.split("|"))
    answer = next(place for place, option in enumerate(options) if option.startswith("*"))
    return Item(name, question, tuple(option.removeprefix("*") for option in options), answer)


ITEMS = tuple(_parsed(line) for line in _TABLE.strip().splitlines())
