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

from jaxppo import __version__, hf, toys
from jaxppo.errors import ModelError
from jaxppo.hf import Loaded
from jaxppo.hf.card import license_of, model_card
from jaxppo.hf.card_metadata import is_shipped
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

_ADAPTERS = {"policy": "adapter", "value": "value_adapter", "reward": "reward_adapter"}
"""What a model card calls the adapter of a model."""


def base_of(
    name: str | None, loaded: Loaded | None, config: ModelConfig, head: str, *, is_frozen: bool
) -> dict[str, Any]:
    """Collect what the export of a model must know about where it started.

    Args:
        name: as the user named it; None: drawn at random.
        loaded: what was read from there.
        config: the model.
        head: "lm" or "score".
        is_frozen: adapters are trained on it, whose export compares it with its `fingerprint`.
    """
    if loaded is None or name is None:
        return {"config": hf.config_to_hf(config, head), "base": None, "license": None, "generation_config": {}}
    generation = loaded.folder / hf.GENERATION_FILE
    return {
        "config": hf.config_to_hf(config, head),
        "base": str(Path(name).absolute()) if loaded.folder == Path(name) else name,
        "license": license_of(loaded.folder),
        "generation_config": read_json(generation) if generation.is_file() else {},
        "fingerprint": lora.fingerprint(loaded.params) if is_frozen and not loaded.shapes_only else None,
    }


def models_meta(
    policy: dict[str, Any],
    value: dict[str, Any] | None,
    adapter: LoraConfig | None,
    stop_ids: tuple[int, ...],
    dataset: str,
    texts: str,
) -> dict[str, Any]:
    """Collect what a checkpoint says about its models, so that it can be exported: plain values, for JSON.

    Args:
        policy: from `base_of`; for a reward model with `"kind": "reward"`.
        value: from `base_of`, or None without a value model of its own.
        adapter: shape of the adapters, or None where whole models are trained.
        stop_ids: tokens of which any ends a completion; the base's list of them stays as it is where it names the same.
        dataset: name, path or hub id of the training data.
        texts: how the model reads prompts and completions, from `ChatTemplate.describe`.
    """
    if stop_ids:
        policy = policy | {"generation_config": _ending_with(stop_ids, policy["generation_config"])}
    return {
        "policy": policy,
        "value": value,
        "adapter": None if adapter is None else dataclasses.asdict(adapter),
        "dataset": _named_as_path(dataset),
        "dataset_license": "apache-2.0" if dataset == "blocksworld" else license_of(Path(dataset)),
        "texts": texts,
        "command": run_folder.command_line(),
    }


def _named_as_path(dataset: str) -> str:
    """Return the name of data for a card: a relative path gets `./`, as from another folder it could be a hub id."""
    return os.path.join(os.curdir, dataset) if "/" in dataset and Path(dataset).exists() else dataset


def _ending_with(stop_ids: tuple[int, ...], generation: dict[str, Any]) -> dict[str, Any]:
    listed = generation.get("eos_token_id")
    if isinstance(listed, list) and set(listed) == set(stop_ids):
        return generation
    return generation | {"eos_token_id": stop_ids[0] if len(stop_ids) == 1 else list(stop_ids)}


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
        params: {"policy"} and maybe {"value"}: whole models, or adapters.
        frozen: weights under adapters, by model.
        tokenizer: of the policy.
        evals: content of `eval.json`; the `reward_bias` of a reward model is stored with it.
        dtype: of the tensors; default: float32 as trained.
        max_shard_size: see `hf.save_pretrained`.
    """
    models = meta["models"]
    adapter = None if models["adapter"] is None else _lora_config(models["adapter"])
    for name, tree in activity.counted("writing models", list(params.items()), "models"):
        info = models[name] or models["policy"]
        kind = info.get("kind", name)
        target, bias = _folder_of(name, info), evals.get(hf.REWARD_BIAS) if kind == "reward" else None
        config, card = _config(info, bias), _card(kind, info, meta, evals)
        if "trunk" not in tree:
            hf.save_value_head(folder / target, tree["score"], _card("value_head", info, meta, evals))
            continue
        whole = tree
        if adapter is not None:
            assert frozen is not None
            base = _path_of(info["base"] or models["policy"]["base"])
            adapter_card = _card(_ADAPTERS[kind], info | {"base": base}, meta, evals)
            save_adapter(folder / ADAPTERS / target, config, adapter, tree, frozen[name], base, adapter_card, bias)
            whole = lora.merge(frozen[name], tree, adapter.scale)
        generation = info["generation_config"] if kind == "policy" else False
        hf.save_pretrained(
            folder / target, config, whole, tokenizer, generation, dtype=dtype, max_shard_size=max_shard_size, card=card
        )


def check_left_over(folder: Path, models: dict[str, Any], params: Params) -> None:
    """Raise a `ModelError` where a folder has models that `write_models` would leave beside its own."""
    written = {_folder_of(name, models[name] or models["policy"]) for name in params}
    written |= {ADAPTERS} if models["adapter"] is not None else set()
    left = sorted(name for name in {"policy", "value", REWARD_MODEL, ADAPTERS} - written if (folder / name).exists())
    if left:
        came = ", ".join(f"{name}/" for name in left)
        raise ModelError(
            f"output_dir: expected no models of another export in {folder}, got {came}; name another folder"
        )


def _folder_of(name: str, info: dict[str, Any]) -> str:
    return REWARD_MODEL if info.get("kind") == "reward" else name


def _config(info: dict[str, Any], reward_bias: float | None) -> ModelConfig:
    """Return the configuration to write: a bias that the base came with does not hold after training."""
    raw = {key: value for key, value in info["config"].items() if key != hf.REWARD_BIAS}
    return hf.config_from_hf(raw if reward_bias is None else raw | {hf.REWARD_BIAS: reward_bias})


def _path_of(base: str) -> str:
    """Return where PEFT finds a base model: the path of a shipped one or a toy, whose names only jaxppo knows."""
    return str(hf.find_model(base)) if is_shipped(base) or base in toys.TOYS else base


def _lora_config(fields: dict[str, Any]) -> LoraConfig:
    targets = fields["target_modules"]
    config = LoraConfig(**fields)
    return dataclasses.replace(config, target_modules=tuple(targets) if isinstance(targets, list) else targets)


def _card(kind: Any, info: dict[str, Any], meta: dict[str, Any], evals: dict[str, Any]) -> str:
    models = meta["models"]
    return model_card(
        title=f"{kind} after update {meta['step']}",
        kind=kind,
        base_model=info["base"] or models["policy"]["base"],
        base_license=info["license"] if info["base"] else models["policy"]["license"],
        dataset=models["dataset"],
        dataset_license=models["dataset_license"],
        texts=models.get("texts"),  # checkpoints of 0.1.0 have none
        algorithm=meta["config"].get("algorithm"),
        config=meta["config"],
        evals=evals,
        metrics=meta.get("metrics", {}),
        step=meta["step"],
        command=models["command"],
        version=__version__,
    )


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
            raise ModelError("base: expected a model folder under the adapter, got one drawn at random")
        loaded = hf.load_model(
            hf.find_model(info["base"]), head="lm" if info.get("kind", name) == "policy" else "score"
        )
        if lora.fingerprint(loaded.params) != info["fingerprint"]:
            raise ModelError(f"{info['base']}: expected the weights that the adapters were trained on, got others")
        frozen[name] = {part: tree for part, tree in loaded.params.items() if part != "score"}
    return jax.device_get(frozen)
