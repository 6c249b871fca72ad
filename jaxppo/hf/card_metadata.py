"""The metadata of a model card, which the Hugging Face hub reads: what the model is, its licence, and its results.

The results are in the hub's own format, `model-index`: one entry for each split and measure of the evaluation after
training, so that pages and tools which compare models find them.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from jaxppo import toys
from jaxppo.config import is_repo_id

Kind = Literal[
    "policy", "value", "reward", "adapter", "value_adapter", "reward_adapter", "value_head"
]
"""What a folder holds: a whole model, a PEFT adapter of one, or a value head alone."""

MEASURES = {
    "validity": "valid plans",
    "executability": "executable plans",
    "accuracy": "pairs ordered as preferred",
    "mean_reward": "mean reward",
    "loss": "loss",
}
"""Measures of an evaluation that a card shows, and what they are called there."""

_LIBRARIES = {
    "adapter": "peft",
    "value_adapter": "peft",
    "reward_adapter": "peft",
    "value_head": "jaxppo",
}
"""The others are transformers'."""
_TASKS = {
    "policy": "text-generation",
    "adapter": "text-generation",
    "reward": "text-classification",
    "reward_adapter": "text-classification",
}
"""The hub's name of the task that is evaluated; the figures of a run are not those of its value model."""

_HUB_LICENSES = (
    "apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m "
    "afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 "
    "cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 "
    "cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 "
    "cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gfdl gpl "
    "gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql "
    "ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license llama2 llama3 llama3.1 llama3.2 llama3.3 gemma "
    "unknown"
)
"""Identifiers that the hub accepts; any other licence is `other` with a name. Source: hub-docs,
docs/hub/repositories-licenses.md."""


def front_matter(
    title: str,
    kind: Kind,
    base_model: str | None,
    base_license: str | None,
    dataset: str,
    algorithm: str | None,
    evals: dict[str, Any],
) -> str:
    """Return the metadata, with nothing but what the hub allows in each field; for the arguments see `model_card`."""
    from huggingface_hub import ModelCardData  # slow to import

    results = list(_eval_results(kind, dataset, evals))
    # The kind is a tag as well: the hub has no task for value models and value heads.
    tags = ["jaxppo", algorithm, kind]
    data = ModelCardData(
        library_name=_LIBRARIES.get(kind, "transformers"),
        base_model=hub_id(base_model),
        pipeline_tag="text-generation" if _TASKS.get(kind) == "text-generation" else None,
        datasets=hub_id(dataset) if "/" in dataset else None,  # a name without a user is built in
        tags=[tag for tag in tags if tag],
        model_name=title if results else None,
        eval_results=results or None,
        **_hub_license(base_license),
    )
    return f"---\n{data.to_yaml()}\n---"


def _eval_results(kind: Kind, dataset: str, evals: dict[str, Any]) -> Iterator[Any]:
    """Yield what was measured after training, rates as fractions of 1, as `huggingface_hub.EvalResult`."""
    from huggingface_hub import EvalResult

    if kind not in _TASKS:
        return
    results = moments_of(evals)["after"]
    for split in splits_of(evals):
        for measure, meaning in MEASURES.items():
            value = results.get(split, {}).get(measure)
            if isinstance(value, dict):
                value = value["rate"]
            if value is not None and math.isfinite(value):
                yield EvalResult(
                    task_type=_TASKS[kind],
                    dataset_type=hub_id(dataset) or Path(dataset).name,
                    dataset_name=Path(dataset).name,
                    dataset_split=split,
                    metric_type=measure,
                    metric_name=meaning,
                    metric_value=round(float(value), 6),
                )


def moments_of(evals: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results "before" and "after" training, by split; splits alone are those after it.

    Args:
        evals: content of `eval.json`; may be partial or empty.
    """
    # Commands that evaluate once, at the end, write the splits alone.
    if "before" in evals or "after" in evals:
        return {name: evals.get(name) or {} for name in ("before", "after")}
    results = {name: value for name, value in evals.items() if isinstance(value, dict)}
    return {"before": {}, "after": results}


def splits_of(evals: dict[str, Any]) -> list[Any]:
    """List the splits of an `eval.json`, the headline split first."""
    moments = moments_of(evals)
    splits = dict.fromkeys([*moments["before"], *moments["after"]])
    return sorted(splits, key=lambda split: split != evals.get("headline_split"))


def hub_id(name: str | None) -> str | None:
    """Return the hub id in `user/name` or `user/name@revision`; None for a folder, a shipped model or a toy."""
    repo = (name or "").partition("@")[0]
    # A folder of that name comes first, as it does where the model is loaded.
    if not is_repo_id(repo) or Path(repo).exists() or is_shipped(repo) or repo in toys.TOYS:
        return None
    return repo


def is_shipped(name: str) -> bool:
    """Return whether a name is that of a model that comes with jaxppo."""
    return name in {folder.name for folder in (Path(__file__).parent / "assets").iterdir()}


def _hub_license(license_name: str | None) -> dict[str, Any]:
    name = re.sub(r"[^a-z0-9.+]+", "-", (license_name or "unknown").lower()).strip("-")
    if name in _HUB_LICENSES.split():
        return {"license": name}
    return {"license": "other", "license_name": name}
