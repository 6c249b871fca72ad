"""The model card of a folder that a run leaves behind: README.md with metadata for the Hugging Face hub.

Names, paths, licences and commands come from outside: each passes `redact` and is escaped for the place where it
stands, so that it can neither carry a secret nor end a table, a block of code or the metadata.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from jaxppo.config.reading import parse_yaml
from jaxppo.config.redact import redact
from jaxppo.config.sources import CALL_ONLY, plain_values
from jaxppo.hf.card_metadata import (
    MEASURES,
    Kind,
    as_dict,
    front_matter,
    hub_id,
    is_number,
    is_shipped,
    moments_of,
    splits_of,
)
from jaxppo.hf.files import CARD_FILE
from jaxppo.run.console import sanitize

TRIED_WITH = ("4.57.1", "5.23.0")
"""The versions of transformers that the tests read exports with: an older one, and that of `requirements.lock`."""

_WHAT = {
    "policy": "A language model (the policy)",
    "value": "A value model (the critic of a policy), which predicts at each token the score still to come",
    "reward": "A reward model, which gives each text one score",
    "adapter": "A LoRA adapter of a language model (the policy)",
    "value_adapter": "A LoRA adapter of a value model (the critic of a policy)",
    "reward_adapter": "A LoRA adapter and score head that make a language model a reward model",
    "value_head": "The value head on a policy's trunk, which predicts at each token the score still to come",
}
_MODELS = ("policy", "value", "reward")  # whole ones

_FOLDER, _BASE = '"path/to/this/folder"', "<base model>"
_CODE = {
    "policy": f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = {_FOLDER}
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
""",
    "value": f"""\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = {_FOLDER}
model = AutoModelForSequenceClassification.from_pretrained(folder)
inputs = AutoTokenizer.from_pretrained(folder)("some text", return_tensors="pt")
values = model.score(model.base_model(**inputs).last_hidden_state)  # one per token
""",
    "reward": f"""\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = {_FOLDER}
model = AutoModelForSequenceClassification.from_pretrained(folder)
inputs = AutoTokenizer.from_pretrained(folder)("some text", return_tensors="pt")
score = model(**inputs).logits[0, 0]
""",
    "adapter": f"""\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained({_BASE})
model = PeftModel.from_pretrained(base, {_FOLDER})
tokenizer = AutoTokenizer.from_pretrained({_BASE})
""",
    "value_adapter": f"""\
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

base = AutoModelForSequenceClassification.from_pretrained({_BASE}, num_labels=1)
model = PeftModel.from_pretrained(base, {_FOLDER})
inputs = AutoTokenizer.from_pretrained({_BASE})("some text", return_tensors="pt")
values = base.score(base.base_model(**inputs).last_hidden_state)  # one per token
""",
    "reward_adapter": f"""\
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

base = AutoModelForSequenceClassification.from_pretrained({_BASE}, num_labels=1)
model = PeftModel.from_pretrained(base, {_FOLDER})
inputs = AutoTokenizer.from_pretrained({_BASE})("some text", return_tensors="pt")
score = model(**inputs).logits[0, 0]
""",
    "value_head": f"""\
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

head, policy = load_file({_FOLDER[:-1]}/value_head.safetensors"), "path/to/policy"
model, tokenizer = AutoModelForCausalLM.from_pretrained(policy), AutoTokenizer.from_pretrained(policy)
hidden = model.base_model(**tokenizer("some text", return_tensors="pt")).last_hidden_state
values = hidden @ head["v_head.summary.weight"].T + head["v_head.summary.bias"]  # one per token
""",
}

_METRICS = (
    "objective/scores",
    "objective/kl",
    "objective/entropy",
    "reward/mean",
    "reward/plan_valid",
    "reward/plan_executable",
    "reward/lccs",
    "policy/approxkl_avg",
    "policy/clipfrac_avg",
    "value/explained_variance",
    "completions/mean_length",
    "loss",
)


def model_card(
    *,
    title: str,
    kind: Kind,
    base_model: str | None,
    base_license: str | None,
    dataset: str,
    dataset_license: str | None,
    texts: str | None,
    algorithm: str | None,
    config: dict[str, Any],
    evals: dict[str, Any],
    metrics: dict[str, float],
    step: int,
    command: str,
    version: str,
) -> str:
    """Return the text of a model card.

    Args:
        title: heading.
        kind: what the folder holds; it decides how the card says to load it.
        base_model: where the weights came from: a hub id, a folder or the name of a shipped model; None: from scratch.
        base_license: its licence, as from `license_of`; None: not stated.
        dataset: what it was trained on.
        dataset_license: its licence; None: not stated.
        texts: how it reads prompts and completions; None: not known.
        algorithm: "ppo", "rloo" or "grpo"; None: supervised.
        config: the flat settings, as from `flatten`; those of one call only (`CALL_ONLY`) are left out.
        evals: content of `eval.json`: "before" and "after" by split, or splits alone; may be partial or empty.
        metrics: last record of `metrics.jsonl`; may be empty.
        step: updates done.
        command: the command line, as from `redact_command`.
        version: of jaxppo.

    Returns:
        Markdown with YAML metadata, a newline at its end.
    """
    base_model = None if base_model is None else redact(base_model)
    origin = "scratch" if base_model is None else _code(base_model)
    how = f" with {_inline(redact(algorithm).upper())}" if algorithm else ""
    parts = [
        front_matter(title, kind, base_model, base_license, redact(dataset), algorithm, evals),
        f"# {_inline(title)}",
        f"{_WHAT[kind]}, trained from {origin} on {_code(dataset)}{how}; these are the weights after update "
        f"{int(step)}. Made with jaxppo {_inline(version)}.",
        "## How to load it",
        _fenced(_CODE[kind].replace(_BASE, _base_argument(base_model)), "python"),
        *([] if texts is None else [f"Prompts and completions were {_inline(redact(texts))}."]),
        *_tried(kind),
        "## Results",
        _results(evals),
        *_last_metrics(metrics, int(step)),
        "## Command",
        _fenced(redact(command), "bash"),
        "## Licences",
        _licences(base_model, base_license, dataset, dataset_license),
        "## Settings",
        _settings(config),
    ]
    return "\n\n".join(parts) + "\n"


def _tried(kind: Kind) -> list[str]:
    versions = " and ".join(TRIED_WITH)
    return [f"Folders like this one were tried with transformers {versions}."] if kind in _MODELS else []


def license_of(folder: Path) -> str | None:
    """Return the licence that the metadata of a model's or dataset's README.md names; several are joined by commas.

    Where the licence is `other`, it is the `license_name`, if there is one. None where nothing readable names one.
    """
    try:
        if not (Path(folder) / CARD_FILE).is_file():  # a pipe would never end
            return None
        text = (Path(folder) / CARD_FILE).read_text(encoding="utf-8-sig", errors="replace")
        block = re.match(r"\s*---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)", text, re.DOTALL)
        data = parse_yaml(block[1]) if block else None
    except (OSError, yaml.YAMLError):
        return None
    if not isinstance(data, dict):
        return None
    named = data.get("license")
    if named == "other" and data.get("license_name"):
        named = data["license_name"]
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return ", ".join(" ".join(name.split()) for name in names if isinstance(name, str) and name.strip()) or None


def _base_argument(base_model: str | None) -> str:
    """Write the argument of `from_pretrained` that names the base model, as Python source."""
    if base_model is None:
        return _literal("path/to/its/base/model")
    repo, _, revision = base_model.partition("@")
    if hub_id(base_model) is None:
        return _literal(f"path/to/{repo}" if is_shipped(repo) else base_model)
    return _literal(repo) + (f", revision={_literal(revision)}" if revision else "")


def _literal(text: str) -> str:
    return f'"{text}"' if re.fullmatch(r"[\w./:@ -]*", text, re.ASCII) else ascii(text)


def _licences(base_model: str | None, base_license: str | None, dataset: str, dataset_license: str | None) -> str:
    data = f"- Data {_code(dataset)}: {_stated(dataset_license)}."
    if base_model is None:
        return f"- Base model: none, trained from scratch.\n{data}"
    both = "This model derives from both: see that you keep to the terms of both."
    return f"- Base model {_code(base_model)}: {_stated(base_license)}.\n{data}\n\n{both}"


def _stated(license_name: str | None) -> str:
    return "not known" if license_name is None else _code(license_name)


def _results(evals: dict[str, Any]) -> str:
    """Before and after by split, the headline split first."""
    moments, headline, splits = moments_of(evals), evals.get("headline_split"), splits_of(evals)
    rows, judges = [], set()
    for split in splits:
        before, after = (as_dict(moments[name].get(split)) for name in ("before", "after"))
        judges |= {_code(str(result["validator"])) for result in (before, after) if "validator" in result}
        for measure, meaning in MEASURES.items():
            if measure in before or measure in after:
                cells = [_code(str(split)), meaning, _measured(before.get(measure)), _measured(after.get(measure))]
                rows.append(f"| {' | '.join(cells)} |")
        rows += _by_domain(str(split), before, after)
    if not rows:
        return "No evaluation was recorded."
    notes = ["Problems that were held out, with Wilson 95 % intervals."]
    if headline in splits:
        notes.append(f"The run is about {_code(str(headline))}.")
    if judges:
        notes.append(f"Plans were judged by {', '.join(sorted(judges))}.")
    return "\n".join([" ".join(notes), "", "| split | measure | before | after |", "|---|---|---|---|", *rows])


def _by_domain(split: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the validity in each domain of a split that has several."""
    moments = [as_dict(result.get("domains")) for result in (before, after)]
    names = sorted({name for domains in moments for name in domains}, key=str)
    rates = [[_measured(as_dict(domains.get(name)).get("validity")) for domains in moments] for name in names]
    return [
        f"| {_code(split)} | {MEASURES['validity']}, {_code(str(name))} | {' | '.join(of_domain)} |"
        for name, of_domain in zip(names, rates, strict=True)
        if len(names) > 1
    ]


def _measured(value: Any) -> str:
    """Return a rate with its interval and n, or a plain number."""
    if not isinstance(value, dict):
        return _number(value)
    rate, low, high, n = (value.get(name) for name in ("rate", "low", "high", "n"))
    if not is_number(rate):
        return "-"
    interval = f" [{low:.1%}, {high:.1%}]" if is_number(low) and is_number(high) else ""
    return f"{rate:.1%}{interval}" + (f", n = {n}" if isinstance(n, int) else "")


def _last_metrics(metrics: dict[str, float], step: int) -> list[str]:
    rows = [f"| `{name}` | {_number(metrics[name])} |" for name in _METRICS if name in metrics]
    if not rows:
        return []
    return [f"## Last update ({step})", "\n".join(["| metric | value |", "|---|---|", *rows])]


def _settings(config: dict[str, Any]) -> str:
    """As `config.yaml` has them, folded away."""
    flat = plain_values({name: value for name, value in config.items() if name not in CALL_ONLY})
    text = yaml.safe_dump({name: _yaml_value(value) for name, value in flat.items()}, sort_keys=False)
    return f"<details>\n<summary>config.yaml</summary>\n\n{_fenced(text, 'yaml')}\n\n</details>"


def _yaml_value(value: Any) -> Any:
    return value if isinstance(value, str | int | float | list | dict | None) else str(value)


def _number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else "-"


def _inline(text: str) -> str:
    """Text for a paragraph, a heading or the cell of a table: one line, nothing of it read as Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>()|#!~$&])", r"\\\1", sanitize(redact(text)).strip())


def _code(text: str) -> str:
    """Return a name in code style, where it is one that needs no escape there; otherwise escaped text."""
    text = redact(text)
    return f"`{text}`" if re.fullmatch(r"[\w.@<]([\w ./:+@,=<>-]*[\w.>])?", text, re.ASCII) else _inline(text)


def _fenced(text: str, language: str) -> str:
    """Return a block of code, its fence longer than any run of backticks in it."""
    lines = "\n".join(sanitize(line, limit=None) for line in text.strip("\n").split("\n"))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", lines)), default=0))
    return f"{fence}{language}\n{lines}\n{fence}"
