"""The model card of a folder that a run leaves behind: README.md with metadata for the Hugging Face hub.

Names, paths, licences and commands are the user's: each passes `redact` and is escaped for its place in the card, so
that it can neither carry a secret nor end a table, a block of code or the metadata.
"""

import re
from pathlib import Path
from typing import Any

import yaml

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
_MODELS = ("policy", "value", "reward")  # no adapters

_FOLDER = '"path/to/this/folder"'
_BASE = "<base model>"
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
        base_license: its licence, as from `license_of`; None: unknown.
        dataset: what it was trained on.
        dataset_license: its licence; None: unknown.
        texts: how it reads prompts and completions; None: unknown.
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
    if base_model is not None:
        base_model = redact(base_model)
    origin = "scratch" if base_model is None else _code(base_model)
    method = f" with {_inline(redact(algorithm).upper())}" if algorithm else ""
    parts = [
        front_matter(title, kind, base_model, base_license, redact(dataset), algorithm, evals),
        f"# {_inline(title)}",
        f"{_WHAT[kind]}, trained from {origin} on {_code(dataset)}{method}; these are the weights after update "
        f"{int(step)}. Made with jaxppo {_inline(version)}.",
        "## How to load it",
        _fenced(_CODE[kind].replace(_BASE, _base_argument(base_model)), "python"),
    ]
    if texts is not None:
        parts.append(f"Prompts and completions were {_inline(redact(texts))}.")
    if kind in _MODELS:
        parts.append(
            f"Folders like this one were tried with transformers {' and '.join(TRIED_WITH)}."
        )
    parts += ["## Results", _results(evals)]
    metric_rows = [
        f"| `{name}` | {_number(metrics[name])} |" for name in _METRICS if name in metrics
    ]
    if metric_rows:
        parts += [
            f"## Last update ({int(step)})",
            "\n".join(["| metric | value |", "|---|---|", *metric_rows]),
        ]
    parts += ["## Command", _fenced(redact(command), "bash")]
    parts += ["## Licences", _licences(base_model, base_license, dataset, dataset_license)]
    parts += ["## Settings", _settings(config)]
    return "\n\n".join(parts) + "\n"


def license_of(folder: Path) -> str | None:
    """Return the licence that the metadata of a model's or dataset's README.md names; several are joined by commas.

    Where the licence is `other`, it is the `license_name`, if the metadata has one. None where no README.md can be read
    that names one.
    """
    from huggingface_hub import metadata_load  # slow to import

    path = Path(folder) / CARD_FILE
    try:
        # Whether it is a file first: a pipe would never end.
        data = metadata_load(path) if path.is_file() else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    data = data or {}
    licenses = data.get("license")
    if licenses == "other" and data.get("license_name"):
        licenses = data["license_name"]
    if not isinstance(licenses, list):
        licenses = [licenses]
    names = [" ".join(name.split()) for name in licenses if isinstance(name, str)]
    return ", ".join(filter(None, names)) or None


def _base_argument(base_model: str | None) -> str:
    """Write the argument of `from_pretrained` that names the base model, as Python source."""
    if base_model is None:
        return _literal("path/to/its/base/model")
    repo, _, revision = base_model.partition("@")
    # Only jaxppo knows the names of its shipped models: transformers needs their path.
    if is_shipped(repo):
        return _literal(f"path/to/{repo}")
    if hub_id(base_model) is None:
        return _literal(base_model)
    if not revision:
        return _literal(repo)
    return f"{_literal(repo)}, revision={_literal(revision)}"


def _literal(text: str) -> str:
    return f'"{text}"' if re.fullmatch(r"[\w./:@ -]*", text, re.ASCII) else ascii(text)


def _licences(
    base_model: str | None, base_license: str | None, dataset: str, dataset_license: str | None
) -> str:
    data_line = f"- Data {_code(dataset)}: {_license_text(dataset_license)}."
    if base_model is None:
        return f"- Base model: none, trained from scratch.\n{data_line}"
    advice = "This model derives from both: see that you keep to the terms of both."
    return (
        f"- Base model {_code(base_model)}: {_license_text(base_license)}.\n{data_line}\n\n{advice}"
    )


def _license_text(license_name: str | None) -> str:
    return "not known" if license_name is None else _code(license_name)


def _results(evals: dict[str, Any]) -> str:
    """Return a table of the results before and after training by split, the headline split first."""
    moments = moments_of(evals)
    splits = splits_of(evals)
    # A measure that only one of the two evaluations has is shown, too: the run may be unfinished.
    rows = []
    judges = set()
    for split in splits:
        results = [as_dict(moments["before"].get(split)), as_dict(moments["after"].get(split))]
        judges |= {_code(str(result["validator"])) for result in results if "validator" in result}
        for measure, meaning in MEASURES.items():
            if any(measure in result for result in results):
                rows.append(
                    _result_row(split, meaning, [result.get(measure) for result in results])
                )
        # The validity in each domain of a split that has several.
        domains = [as_dict(result.get("domains")) for result in results]
        names = sorted({*domains[0], *domains[1]}, key=str)
        for name in names if len(names) > 1 else ():
            rates = [as_dict(domain.get(name)).get("validity") for domain in domains]
            rows.append(_result_row(split, f"{MEASURES['validity']}, {_code(str(name))}", rates))
    if not rows:
        return "No evaluation was recorded."
    notes = ["Problems that were held out, with Wilson 95 % intervals."]
    headline_split = evals.get("headline_split")
    if headline_split in splits:
        notes.append(f"The run is about {_code(str(headline_split))}.")
    if judges:
        notes.append(f"Plans were judged by {', '.join(sorted(judges))}.")
    return "\n".join(
        [" ".join(notes), "", "| split | measure | before | after |", "|---|---|---|---|", *rows]
    )


def _result_row(split: Any, measure: str, values: list[Any]) -> str:
    return f"| {_code(str(split))} | {measure} | {' | '.join(map(_rate, values))} |"


def _rate(value: Any) -> str:
    """Return a rate with its interval and n, or a plain number."""
    if not isinstance(value, dict):
        return _number(value)
    if not is_number(value.get("rate")):
        return "-"
    text = f"{value['rate']:.1%}"
    low = value.get("low")
    high = value.get("high")
    if is_number(low) and is_number(high):
        text += f" [{low:.1%}, {high:.1%}]"
    if isinstance(value.get("n"), int):
        text += f", n = {value['n']}"
    return text


def _settings(config: dict[str, Any]) -> str:
    """Return the settings as `config.yaml` has them, folded away."""
    flat = plain_values({name: value for name, value in config.items() if name not in CALL_ONLY})
    text = yaml.safe_dump(flat, sort_keys=False)
    return f"<details>\n<summary>config.yaml</summary>\n\n{_fenced(text, 'yaml')}\n\n</details>"


def _number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else "-"


def _inline(text: str) -> str:
    """Return a text for a paragraph, a heading or the cell of a table: one line, not read as Markdown or HTML."""
    # All punctuation of Markdown and HTML, whether or not it has a meaning in its place.
    return re.sub(r"([\\`*_{}\[\]<>()|#!~$&])", r"\\\1", sanitize(redact(text)).strip())


def _code(text: str) -> str:
    """Return a name in code style where all its characters may stand there; otherwise escaped text."""
    text = redact(text)
    return (
        f"`{text}`"
        if re.fullmatch(r"[\w.@<]([\w ./:+@,=<>-]*[\w.>])?", text, re.ASCII)
        else _inline(text)
    )


def _fenced(text: str, language: str) -> str:
    """Return a block of code, its fence longer than any run of backticks in it."""
    code = "\n".join(sanitize(line, limit=None) for line in text.strip("\n").split("\n"))
    longest = max((len(backticks) for backticks in re.findall("`+", code)), default=0)
    # A block ends with a fence as long as its first one: no run of backticks in the code is.
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"
