"""Made-up texts with a known right answer: film reviews with a sentiment, posts with the facts of their summary.

Punctuation stands between blanks like words, and a completion begins with a blank, as GPT-2's tokens do.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

Row = dict[str, Any]

# -------------------------------------------------------------------------------------------------------------- reviews

FAVOURABLE = "superb moving brilliant funny charming clever warm gripping graceful lovely fresh witty".split()  # noqa: SIM905
UNFAVOURABLE = "dull clumsy boring awful tedious silly cold lazy noisy weak stale muddled".split()  # noqa: SIM905
_PARTS = "film movie plot acting music ending script story dialogue cast camera humour".split()  # noqa: SIM905
_PEOPLE = "brother sister friend neighbour teacher aunt".split()  # noqa: SIM905
_DAYS = "monday tuesday friday saturday sunday holiday".split()  # noqa: SIM905

_SLIP = 0.15  # chance that a word of a review goes against its sentiment


def review(random: Random, favourable: bool) -> str:
    """A review of four to six sentences, whose words mostly, but not always, agree with its sentiment."""

    def word() -> str:
        agrees = random.random() >= _SLIP
        return random.choice(FAVOURABLE if favourable == agrees else UNFAVOURABLE)

    def part() -> str:
        return random.choice(_PARTS)

    # Functions, so that only the sentence that is chosen draws its words.
    openings = [
        lambda: (
            f"i saw this {part()} with my {random.choice(_PEOPLE)} last {random.choice(_DAYS)} ."
        ),
        lambda: f"my {random.choice(_PEOPLE)} told me about the {part()} of this film .",
        lambda: f"this movie has a {word()} {part()} .",
        lambda: f"on {random.choice(_DAYS)} we went to see a film with a {word()} {part()} .",
    ]
    sentences = [
        lambda: f"the {part()} was {word()} and {word()} .",
        lambda: f"a {word()} {part()} and a {word()} {part()} .",
        lambda: f"what a {word()} {part()} !",
        lambda: f"i found the {part()} {word()} , my {random.choice(_PEOPLE)} found it {word()} .",
        lambda: f"its {part()} is {word()} .",
    ]
    chosen = [random.choice(openings)()]
    for _ in range(random.randint(3, 5)):
        chosen.append(random.choice(sentences)())
    return " ".join(chosen)


def review_rows(split: str, count: int, seed: int) -> list[Row]:
    """Rows `prompt` and `label` (1: favourable); those of `sft` have the beginning of a review and its `completion`."""
    random = Random(f"{seed} {split}")
    rows = []
    for number in range(count):
        favourable = number % 2 == 0
        words = review(random, favourable).split()
        row = {"id": f"{split}-{number}", "label": int(favourable)}
        cut = random.randint(1, 4) if split.startswith("sft") else len(words)
        row["prompt"] = " ".join(words[:cut])
        if cut < len(words):
            row["completion"] = f" {' '.join(words[cut:])}"
        rows.append(row)
    return rows


def favourable_words(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward function: favourable words minus unfavourable ones, as a fraction of both; 0 where there is none."""
    scores = []
    for text in completions:
        words = text.split()
        good = sum(word in FAVOURABLE for word in words)
        bad = sum(word in UNFAVOURABLE for word in words)
        scores.append((good - bad) / max(good + bad, 1))
    return scores


# ---------------------------------------------------------------------------------------------------------------- posts

_RELATIONS = "sister boss neighbour roommate mother teacher cousin uncle landlord partner".split()  # noqa: SIM905
_WHO = [f"my {relation}" for relation in _RELATIONS]
_DEEDS = "broke lost sold painted borrowed dropped hid washed".split()  # noqa: SIM905
_THINGS = "phone bike guitar car camera jacket laptop tent ladder kettle".split()  # noqa: SIM905
_WISHES = [
    "an apology",
    "the money back",
    "a new one",
    "some quiet",
    "to move out",
    "to forget it",
    "a long talk",
]
_ASIDES = [
    "we have known each other for years .",
    "it was raining all day .",
    "nobody else was at home .",
    "i was at work until late .",
    "this is not the first time .",
    "i did not sleep well .",
    "everyone is talking about it .",
    "i am writing this on the train .",
]
_FAULT_RATES = {"who": 0.1, "deed": 0.1, "wish": 0.1, "missing": 0.6, "long": 0.1}
_FAULTS = tuple(_FAULT_RATES)


def post_row(name: str, random: Random) -> Row:
    """A post with the facts that a summary should keep; another person is mentioned, and some asides."""
    who, bystander = random.sample(_WHO, 2)
    deed = random.choice(_DEEDS)
    thing = random.choice(_THINGS)
    wish = random.choice(_WISHES)
    asides = random.sample(_ASIDES, 2)
    middle = [f"{who} {deed} my {thing} .", f"{bystander} says it is nothing .", asides[0]]
    random.shuffle(middle)
    text = " ".join(["post :", *middle, f"i want {wish} .", asides[1], "tl;dr :"])
    return {
        "id": name,
        "prompt": text,
        "who": who,
        "deed": f"{deed} my {thing}",
        "wish": wish,
        "other": bystander,
    }


def summary(row: Row, faults: Sequence[str], random: Random) -> str:
    """A summary of a post with the faults named: a fact of the wrong kind, the wish missing, or an aside too much."""
    who = row["other"] if "who" in faults else row["who"]
    deed = (
        f"{random.choice(_DEEDS)} my {random.choice(_THINGS)}" if "deed" in faults else row["deed"]
    )
    wish = random.choice(_WISHES) if "wish" in faults else row["wish"]
    text = f" {who} {deed} ." if "missing" in faults else f" {who} {deed} and i want {wish} ."
    if "long" in faults:
        text += f" {random.choice(_ASIDES)}"
    return text


def summary_rows(split: str, count: int, seed: int) -> list[Row]:
    """Rows `prompt`, `completion` and the facts.

    The authors of these summaries left the wish out more often than not, so a model that imitates them does so, too;
    each other fault is in some of them.
    """
    random = Random(f"{seed} {split}")
    rows = []
    for number in range(count):
        row = post_row(f"{split}-{number}", random)
        faults = [fault for fault in _FAULTS if random.random() < _FAULT_RATES[fault]]
        rows.append(row | {"completion": summary(row, faults, random)})
    return rows


def preference_rows(split: str, count: int, seed: int) -> list[Row]:
    """Rows `prompt`, `chosen` and `rejected`: the one with fewer faults is chosen."""
    random = Random(f"{seed} {split}")
    rows = []
    for number in range(count):
        row = post_row(f"{split}-{number}", random)
        chosen_faults = random.choice([0, 0, 1])
        faults = random.sample(_FAULTS, random.randint(chosen_faults + 1, 3))
        # The chosen summary is drawn first: the order of draws makes the data set.
        chosen = summary(row, faults[:chosen_faults], random)
        rejected = summary(row, faults, random)
        rows.append({"prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
    return rows


def facts_kept(
    completions: Sequence[str],
    who: Sequence[str],
    deed: Sequence[str],
    wish: Sequence[str],
    **_: Any,
) -> list[float]:
    """A reward function: 1 for exactly the summary without faults, else the fraction of facts kept, halved."""
    scores = []
    for text, *facts in zip(completions, who, deed, wish, strict=True):
        plain = " ".join(text.split())
        is_right = plain == f"{facts[0]} {facts[1]} and i want {facts[2]} ."
        num_kept = sum(fact in plain for fact in facts)
        scores.append(1.0 if is_right else num_kept / (2 * len(facts)))
    return scores
