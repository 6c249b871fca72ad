"""Write trained models as Hugging Face folders: the end of every training command, and `python -m jaxppo.export`.

They are `policy/` (AutoModelForCausalLM), `value/` (AutoModelForSequenceClassification, or `value_head.safetensors` for
a head on the policy's trunk), for a run of `reward_model` instead `reward_model/` (AutoModelForSequenceClassification),
and, for a run with LoRA, `adapters/policy` and so on (PEFT) beside the merged models.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax

from jaxppo import hf, toys
from jaxppo.errors import ModelError
from jaxppo.hf import LoadedModel
from jaxppo.hf.card import license_of, model_card
from jaxppo.hf.card_metadata import Kind, is_shipped
from jaxppo.hf.files import read_json
from jaxppo.hf.peft import save_adapter
from jaxppo.nn import ModelConfig, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.run import activity
from jaxppo.run import folder as run_folder
from jaxppo.types import Params

TOKENIZER_FOLDER = "tokenizer"
"""In a run folder: the policy's tokenizer, for exports of its checkpoints."""

REWARD_MODEL = "reward_model"
"""In a run folder of `reward_model`: what it trained."""

ADAPTERS = "adapters"
"""In a run folder: what a run with LoRA trained, beside the merged models."""

_ADAPTERS: dict[str, Kind] = {
    "policy": "adapter",
    "value": "value_adapter",
    "reward": "reward_adapter",
}
"""What a model card calls the adapter of a model."""


def base_of(
    name: str | None, loaded: LoadedModel | None, config: ModelConfig, head: str, *, is_frozen: bool
) -> dict[str, Any]:
    """Collect what the export of a model needs about the weights that its training started from.

    Args:
        name: as the user named it; None: initialized at random.
        loaded: the model read from there.
        config: the model.
        head: "lm" or "score".
        is_frozen: whether adapters are trained on it, whose export compares it with its `fingerprint`.
    """
    if loaded is None or name is None:
        return {
            "config": hf.config_to_hf(config, head),
            "base": None,
            "license": None,
            "generation_config": {},
        }
    generation_file = loaded.folder / hf.GENERATION_FILE
    # A folder gets its absolute path, as the export may be
    # called from elsewhere; a hub id or a shipped name stays.
    is_folder = loaded.folder == Path(name)
    has_fingerprint = is_frozen and not loaded.shapes_only
    return {
        "config": hf.config_to_hf(config, head),
        "base": str(Path(name).absolute()) if is_folder else name,
        "license": license_of(loaded.folder),
        "generation_config": read_json(generation_file) if generation_file.is_file() else {},
        "fingerprint": lora.fingerprint(loaded.params) if has_fingerprint else None,
    }


def models_meta(
    policy: dict[str, Any],
    value: dict[str, Any] | None,
    adapter: LoraConfig | None,
    stop_ids: tuple[int, ...],
    dataset: str,
    texts: str,
) -> dict[str, Any]:
    """Collect what a checkpoint keeps about its models, so that it can be exported: plain values, for JSON.

    Args:
        policy: from `base_of`; for a reward model with `"kind": "reward"`.
        value: from `base_of`; None: the value function started from the policy, or is a head on its trunk.
        adapter: shape of the adapters, or None where whole models are trained.
        stop_ids: tokens of which any ends a completion; the base's list of them stays as it is where it names the same.
        dataset: name, path or hub id of the training data.
        texts: how the model reads prompts and completions, from `ChatTemplate.describe`.
    """
    # transformers' `generate` then ends completions where the run did.
    if stop_ids:
        policy = policy | {"generation_config": _ending_with(stop_ids, policy["generation_config"])}
    return {
        "policy": policy,
        "value": value,
        "adapter": None if adapter is None else dataclasses.asdict(adapter),
        "dataset": _named_as_path(dataset),
        "dataset_license": "apache-2.0" if dataset == "blocksworld" else license_of(Path(dataset)),
        "texts": texts,
        # The card shows the command that trained the model, not the one that exports it.
        "command": run_folder.command_line(),
    }


def _named_as_path(dataset: str) -> str:
    """Return the name of data for a card: a relative path gets `./`, as from another folder it could be a hub id."""
    if "/" in dataset and Path(dataset).exists():
        return os.path.join(os.curdir, dataset)
    return dataset


def _ending_with(stop_ids: tuple[int, ...], generation: dict[str, Any]) -> dict[str, Any]:
    base_ids = generation.get("eos_token_id")
    # The same ids in another order: the base's file stays as it is.
    if isinstance(base_ids, list) and set(base_ids) == set(stop_ids):
        return generation
    if len(stop_ids) == 1:
        return generation | {"eos_token_id": stop_ids[0]}
    return generation | {"eos_token_id": list(stop_ids)}


def write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Keep the policy's tokenizer in a run folder, for exports of its checkpoints."""
    hf.save_tokenizer(tokenizer, folder / TOKENIZER_FOLDER)


def write_models(
    folder: Path,
    meta: dict[str, Any],
    params: Params,
    frozen: Params | None,
    tokenizer: Any,
    evals: dict[str, Any],
    *,
    dtype: str | None = None,
    max_shard_size: int | str = hf.MAX_SHARD_SIZE,
) -> None:
    """Write all models of a training state.

    Args:
        folder: gets `policy/` and `value/`, or `reward_model/`, and `adapters/`.
        meta: of the checkpoint: "config", "step", "metrics", "models".
        params: {"policy"} and perhaps {"value"}: whole models, or adapters.
        frozen: weights under adapters, by model.
        tokenizer: of the policy.
        evals: content of `eval.json`; the `reward_bias` of a reward model is stored with it.
        dtype: of the tensors; default: float32 as trained.
        max_shard_size: see `hf.save_pretrained`.
    """
    models = meta["models"]
    adapter = None
    if models["adapter"] is not None:
        adapter = _lora_config(models["adapter"])
    for name, tree in activity.track("writing models", list(params.items()), "models"):
        # A value function without an entry of its own started from the policy.
        info = models[name] or models["policy"]
        kind: Any = info.get("kind", name)
        target = REWARD_MODEL if kind == "reward" else name
        if "trunk" not in tree:  # a head on the policy's trunk
            hf.save_value_head(
                folder / target, tree["score"], model_card("value_head", info, meta, evals)
            )
            continue
        # Known only once the trained model has scored some texts.
        reward_bias = evals.get(hf.REWARD_BIAS) if kind == "reward" else None
        config = _config(info, reward_bias)
        if adapter is not None:
            assert frozen is not None
            base = _path_of(info["base"] or models["policy"]["base"])
            adapter_card = model_card(_ADAPTERS[kind], info | {"base": base}, meta, evals)
            save_adapter(
                folder / ADAPTERS / target,
                config,
                adapter,
                tree,
                frozen[name],
                base,
                adapter_card,
                reward_bias,
            )
            # The merged model, too: readers without PEFT load it like any other.
            tree = lora.merge(frozen[name], tree, adapter.scale)
        hf.save_pretrained(
            folder / target,
            config,
            tree,
            tokenizer,
            generation_config=info["generation_config"] if kind == "policy" else False,
            dtype=dtype,
            max_shard_size=max_shard_size,
            card=model_card(kind, info, meta, evals),
        )


def _config(info: dict[str, Any], reward_bias: float | None) -> ModelConfig:
    """Return the configuration to write: a reward bias of the base is not that of the trained model."""
    raw = dict(info["config"])
    raw.pop(hf.REWARD_BIAS, None)
    if reward_bias is not None:
        raw[hf.REWARD_BIAS] = reward_bias
    return hf.config_from_hf(raw)


def _path_of(base: str) -> str:
    """Return where PEFT finds a base model: the path of a shipped one or a toy, whose names only jaxppo knows."""
    if is_shipped(base) or base in toys.TOYS:
        return str(hf.find_model(base))
    return base


def _lora_config(fields: dict[str, Any]) -> LoraConfig:
    targets: Any = fields["target_modules"]
    if isinstance(targets, list):  # JSON has no tuples
        targets = tuple(targets)
    settings: dict[str, Any] = fields | {"target_modules": targets}
    return LoraConfig(**settings)


def frozen_weights(models: dict[str, Any], params: Params) -> Params:
    """Read the weights under the adapters of a run from where the run took them.

    Args:
        models: from `models_meta`.
        params: what the checkpoint holds, by model.

    Raises:
        ModelError: there is no such folder, or it holds other weights.
    """
    frozen = {}
    for name in params:
        info = models[name] or models["policy"]
        if info["base"] is None:
            raise ModelError(
                "base: expected a model folder under the adapter, got one initialized at random"
            )
        head = "lm" if info.get("kind", name) == "policy" else "score"
        loaded = hf.load_model(hf.find_model(info["base"]), head=head)
        # The folder may have been replaced since: adapters
        # over other weights would be another model.
        if lora.fingerprint(loaded.params) != info["fingerprint"]:
            raise ModelError(
                f"{info['base']}: expected the weights that the adapters were trained on, got others"
            )
        frozen[name] = {part: tree for part, tree in loaded.params.items() if part != "score"}
    return jax.device_get(frozen)
