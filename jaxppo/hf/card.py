"""The model card of a folder that a run leaves behind: README.md with metadata for the Hugging Face hub.

Names, paths, licences and commands are the user's: the card as a whole passes `redact`, so that it carries no secret.
"""

from pathlib import Path
from typing import Any

import yaml

from jaxppo import __version__
from jaxppo.config.redact import redact
from jaxppo.config.sources import CALL_ONLY, plain_values
from jaxppo.hf.card_metadata import (
    MEASURES,
    Kind,
    front_matter,
    hub_id,
    is_shipped,
    moments_of,
    splits_of,
)
from jaxppo.hf.files import CARD_FILE

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
# The tests run each of these as it stands.
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


def model_card(
    kind: Kind, info: dict[str, Any], meta: dict[str, Any], evals: dict[str, Any]
) -> str:
    """Return the text of a model card: Markdown with YAML metadata, a newline at its end.

    Args:
        kind: what the folder holds; it decides how the card says to load it.
        info: of the model, from `export.base_of`.
        meta: of its checkpoint: "step", "config" (the flat settings) and "models" (from `export.models_meta`).
        evals: content of `eval.json`: "before" and "after" by split, or splits alone; may be partial or empty.
    """
    models = meta["models"]
    config = meta["config"]
    # A value function without a base of its own started from the policy.
    base_info = info if info["base"] else models["policy"]
    base_model = base_info["base"]
    base_license = base_info["license"]
    dataset = models["dataset"]
    texts = models.get("texts")  # checkpoints of 0.1.0 have none
    algorithm = config.get("algorithm")  # none where it was supervised
    title = f"{kind} after update {meta['step']}"
    origin = "scratch" if base_model is None else f"`{base_model}`"
    method = f" with {algorithm.upper()}" if algorithm else ""
    parts = [
        front_matter(title, kind, base_model, base_license, dataset, algorithm, evals),
        f"# {title}",
        f"{_WHAT[kind]}, trained from {origin} on `{dataset}`{method}; these are the weights after update "
        f"{meta['step']}. Made with jaxppo {__version__}.",
        "## How to load it",
        _fenced(_CODE[kind].replace(_BASE, _base_argument(base_model)), "python"),
    ]
    if texts is not None:
        parts.append(f"Prompts and completions: `{texts}`.")
    if kind in _MODELS:
        parts.append(
            f"Folders like this one were tried with transformers {' and '.join(TRIED_WITH)}."
        )
    parts += ["## Results", _results(evals)]
    parts += ["## Command", _fenced(models["command"], "bash")]
    parts += [
        "## Licences",
        f"- Base model {origin}: {base_license or 'not known'}.\n"
        f"- Data `{dataset}`: {models['dataset_license'] or 'not known'}.\n\n"
        "This model derives from both: see that you keep to the terms of both.",
    ]
    parts += ["## Settings", _settings(config)]
    # The card goes to the hub as it is: secrets in names, addresses and commands end here.
    return redact("\n\n".join(parts)) + "\n"


def license_of(folder: Path) -> str | None:
    """Return the licence that the metadata of a model's or dataset's README.md names; several are joined by commas.

    Where the licence is `other`, it is the `license_name`, if the metadata has one. None where no README.md can be read
    that names one.
    """
    from huggingface_hub import metadata_load  # slow to import

    path = Path(folder) / CARD_FILE
    try:
        data = metadata_load(path)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    data = data or {}
    licenses = data.get("license")
    if licenses == "other":
        licenses = data.get("license_name", licenses)
    return ", ".join(licenses) if isinstance(licenses, list) else licenses


def _base_argument(base_model: str | None) -> str:
    """Write the argument of `from_pretrained` that names the base model, as Python source."""
    repo, _, revision = (base_model or "path/to/its/base/model").partition("@")
    # Only jaxppo knows the names of its shipped models: transformers needs their path.
    if is_shipped(repo):
        return f'"path/to/{repo}"'
    if revision and hub_id(base_model) is not None:
        return f'"{repo}", revision="{revision}"'
    return f'"{base_model or repo}"'


def _results(evals: dict[str, Any]) -> str:
    """Return a table of the results before and after training by split, the headline split first."""
    moments = moments_of(evals)
    splits = splits_of(evals)
    # A measure that only one of the two evaluations has is shown, too: the run may be unfinished.
    rows = []
    judges = set()
    for split in splits:
        results = [moments["before"].get(split, {}), moments["after"].get(split, {})]
        judges |= {f"`{result['validator']}`" for result in results if "validator" in result}
        for measure, meaning in MEASURES.items():
            values = [result.get(measure) for result in results]
            if values != [None, None]:
                rows.append(f"| {split} | {meaning} | {_rate(values[0])} | {_rate(values[1])} |")
    if not rows:
        return "No evaluation was recorded."
    notes = ["Rows that were held out; percentages have Wilson 95 % intervals."]
    if evals.get("headline_split") in splits:
        notes.append(f"The run is about `{evals['headline_split']}`.")
    if judges:
        notes.append(f"Plans were judged by {', '.join(sorted(judges))}.")
    return "\n".join(
        [" ".join(notes), "", "| split | measure | before | after |", "|---|---|---|---|", *rows]
    )


def _rate(value: Any) -> str:
    """Return a rate with its interval and n, or a plain number."""
    if value is None:
        return "-"
    if not isinstance(value, dict):
        return f"{value:.4g}"
    if value["low"] is None:  # of a single row there is no interval
        return f"{value['rate']:.1%}"
    return f"{value['rate']:.1%} [{value['low']:.1%}, {value['high']:.1%}], n = {value['n']}"


def _settings(config: dict[str, Any]) -> str:
    """Return the settings as `config.yaml` has them, folded away."""
    flat = plain_values({name: value for name, value in config.items() if name not in CALL_ONLY})
    text = yaml.safe_dump(flat, sort_keys=False)
    return f"<details>\n<summary>config.yaml</summary>\n\n{_fenced(text, 'yaml')}\n\n</details>"


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.strip()}\n```"
