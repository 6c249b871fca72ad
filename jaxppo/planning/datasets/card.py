"""The card of a data set: README.md with the metadata that the `datasets` library and the Hugging Face hub read."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_SPLITS = {
    "train": "for supervised training",
    "rl": "for reinforcement learning",
    "test": "new problems like those of train",
    "test_longer": "longer plans, no more objects than in train, rl and test",
    "test_larger": "more objects than in train, rl and test",
    "test_unseen": "domains that train does not have",
    "test_obfuscated": "the problems of test in other words",
}
# A column that is not here is listed without an explanation.
_COLUMNS = {
    "id": "unique in the data set",
    "domain": "name of the domain",
    "split": "name of the split",
    "prompt": "the problem, in the prompt style",
    "completion": "the reference plan, in the prompt style",
    "reference_plan": "the reference plan as `(action args)` strings (several plans: a list of such lists)",
    "domain_pddl": "PDDL text of the domain",
    "problem_pddl": "PDDL text of the problem",
    "plan_length": "steps of the reference plan",
    "n_objects": "objects of the problem, constants of the domain among them",
    "prompt_style": "how prompt and completion are written",
    "planner": "where the reference plan comes from, with its version",
    "obfuscation": "style of the other words, `random` or `deceptive`; empty where the words are the domain's",
    "paired_id": "row that has the same problem under other names; empty where this one was there first",
    "source": "where the problem comes from",
}


def data_card(report: Mapping[str, Any], features: Mapping[str, Any]) -> str:
    """Write the card.

    Args:
        report: what `write_dataset` puts into report.json.
        features: column to its type.
    """
    parts = [
        f"---\n{_metadata(report, features)}---\n",
        f"# {_plain(report['title'])}\n",
        "PDDL planning problems as prompts, each with a reference plan that "
        f"{' and '.join(_VALIDATORS[name] for name in report['validators'])} accepted.\n",
        f"## How it was made\n\n{_how_it_was_made(report)}\n",
        f"## Splits\n\n{_split_table(report['splits'])}\n",
        f"## Leaks\n\n{leak_text(report['leaks'])}\n",
        f"## Left out\n\n{_rejected_text(report['rejected'])}\n",
        f"## Columns\n\n{_column_table(features)}\n",
        f"## Limits\n\n{_LIMITS}\n",
    ]
    return "\n".join(parts)


_VALIDATORS = {"builtin": "the validator of jaxppo", "VAL": "VAL"}
_LIMITS = """\
- A reference plan is one valid plan of many, and not the shortest one unless its planner says `optimal`.
- Splits of one data set are compared; whether a language model saw such problems elsewhere is not known.
- Problems come from distributions of a generator or a collection: a rate on a split is one on that distribution."""


def leak_text(leaks: Mapping[str, Any]) -> str:
    """Write the leak report in sentences."""
    pairs = leaks["pairs"]
    n_problems = sum(pair["problems"] for pair in pairs.values())
    n_prompts = sum(pair["prompts"] for pair in pairs.values())
    lines = [
        f"{n_problems} shared problems and {n_prompts} shared prompts between {len(pairs)} pairs of splits; "
        "problems are compared up to the names of objects and the order of atoms."
    ]
    for name, pair in pairs.items():
        if any(pair.values()):
            lines.append(
                f"{_plain(name)}: {pair['problems']} shared problems, {pair['prompts']} shared prompts."
            )
    lines += [
        f"{_plain(split)}: plan lengths reach those of test_longer."
        for split in leaks["touching_bands"]
    ]
    lines += [f"{_plain(domain)}: in test_unseen and in train." for domain in leaks["seen_domains"]]
    return "\n".join(lines)


def _metadata(report: Mapping[str, Any], features: Mapping[str, Any]) -> str:
    """Write the YAML at the head of the card, in the words of the hub."""
    content: dict[str, Any] = {"pretty_name": _plain(report["title"])}
    if report["licence"] is not None:
        content["license"] = report["licence"]
    content |= {
        "language": ["en"],
        "task_categories": ["text-generation"],
        "tags": ["planning", "pddl", "reinforcement-learning"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": split, "path": f"{split}.jsonl"} for split in report["splits"]
                ],
            }
        ],
        "dataset_info": {
            "features": [{"name": name, **_feature(kind)} for name, kind in features.items()]
        },
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _feature(kind: Any) -> dict[str, Any]:
    """Describe a column: the hub has `dtype` for the type of a column, and nothing but the type for that of an item."""
    return {"dtype": kind} if isinstance(kind, str) else kind


def _split_figures(splits: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Yield split, domain and figures."""
    for split, domains in splits.items():
        for domain, figures in domains.items():
            yield split, domain, figures


def _how_it_was_made(report: Mapping[str, Any]) -> str:
    lines = [_plain(report["how"]), ""]
    planners: set[str] = set()
    for _, _, figures in _split_figures(report["splits"]):
        planners.update(figures["planners"])
    lines.append(f"Reference plans are from: {', '.join(map(_plain, sorted(planners)))}.")
    for shortfall in report.get("shortfalls", []):
        lines.append(f"Fewer rows than asked for: {_plain(shortfall)}.")
    return "\n".join(lines)


def _split_table(splits: Mapping[str, Any]) -> str:
    lines = [
        "| split | domain | rows | plan length: least, median, most | objects |",
        "|---|---|---|---|---|",
    ]
    for split, domain, figures in _split_figures(splits):
        cells = (
            split,
            domain,
            str(figures["rows"]),
            _range(figures["plan_length"]),
            _range(figures["n_objects"]),
        )
        lines.append(f"| {' | '.join(map(_plain, cells))} |")
    notes = [f"- `{split}`: {_SPLITS[split]}" for split in splits if split in _SPLITS]
    return "\n".join([*lines, "", *notes])


def _range(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{figures[name]:g}" for name in ("min", "median", "max"))


def _rejected_text(rejected: Mapping[str, int]) -> str:
    if not rejected:
        return "Nothing."
    rows = [f"| {_plain(reason)} | {count} |" for reason, count in rejected.items()]
    return "\n".join(
        ["| reason | problems |", "|---|---|", *rows, "", "`rejected.jsonl` lists them."]
    )


def _column_table(features: Mapping[str, Any]) -> str:
    rows = [f"| `{_plain(name)}` | {_COLUMNS.get(name, '')} |" for name in features]
    return "\n".join(["| column | what |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """Put text from outside on one line of Markdown, where it can neither end a table nor start markup."""
    # Line breaks and marks that turn the direction of text around are not printable.
    line = "".join(char if char.isprintable() else " " for char in text)
    return "".join(f"\\{char}" if char in "\\`*[]<>|" else char for char in line)
