"""The models that a run starts from, read from the folders that the settings name."""

from typing import Any, NamedTuple

from jaxppo import hf, models
from jaxppo.config import PeftConfig, TrainConfig
from jaxppo.errors import ConfigError, ModelError
from jaxppo.hf.export import base_of
from jaxppo.nn import ModelConfig, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.run.console import Console
from jaxppo.run.metrics import find as find_metric
from jaxppo.types import Params


class Start(NamedTuple):
    """Parameters that a run starts from; not kept longer than needed, as they may take as much memory as the run."""

    policy: Params  # also the reference
    value: Params | None  # None: a fresh head, or no value model
    adapter: Params | None  # of the policy; None: a fresh one, or none


class StartModels(NamedTuple):
    """What the models of a run are, beside their parameters."""

    policy: ModelConfig
    value: ModelConfig  # of a separate value model
    adapter: lora.LoraConfig | None  # shape of the adapter that is loaded
    tokenizer: Any
    policy_base: dict[str, Any]  # from `base_of`
    value_base: dict[str, Any] | None

    def check_length(self, longest: int) -> None:
        """Check sequences of up to `longest` tokens for both models, as `models.check_length` does."""
        for model in (self.policy, self.value):
            models.check_length(
                model,
                longest,
                "longest prompt and response_length",
                self.tokenizer.model_max_length,
            )


def load_start(
    config: TrainConfig, parallel: DataParallel, console: Console
) -> tuple[StartModels, Start]:
    """Read policy, value model and adapter, and check the settings that depend on them.

    Args:
        config: hyper-parameters.
        parallel: devices; parameters are read into their shards.
        console: for the lines that say what was read.

    Raises:
        ConfigError: a setting does not fit the policy.
        ModelError: a folder is missing, or its model does not fit.
    """
    # A dry run needs shapes alone, unless a reward computes
    # with the weights, or an adapter is compared with them.
    rewards_need_no_weights = (
        config.reward.reward_funcs == ("plan",) or config.run.target is not None
    )
    shapes_only = config.run.dry_run and rewards_need_no_weights and config.peft.lora_path is None
    policy = hf.load_policy(config.sft_model_path, parallel.placement, shapes_only)
    console.print(f"policy from {policy.loaded.describe()}")
    _check_names(config, policy.config)
    value_model, value, value_base = _value_model(
        config, policy.config, parallel, console, shapes_only
    )
    adapter_shape, adapter = start_adapter(config.peft, policy.config, policy.params)
    base = base_of(
        config.sft_model_path, policy.loaded, policy.config, "lm", is_frozen=config.peft.use_peft
    )
    start = StartModels(
        policy.config, value_model, adapter_shape, policy.tokenizer, base, value_base
    )
    return start, Start(policy.params, value, adapter)


def _check_names(config: TrainConfig, model: ModelConfig) -> None:
    best = config.loop.best_metric
    if best is not None and find_metric(best) is None:
        raise ConfigError(
            f"metric_for_best_model: expected a metric of docs/metrics.md, got {best!r}"
        )
    config.sampling.check_stop_token(model.num_logits)


def _value_model(
    config: TrainConfig,
    model: ModelConfig,
    parallel: DataParallel,
    console: Console,
    shapes_only: bool,
) -> tuple[ModelConfig, Params | None, dict[str, Any] | None]:
    """Return architecture, parameters and origin of the value function's start; None where all of it is fresh."""
    if config.value_model_path is None:
        return model, None, None
    folder = hf.find_model(
        config.value_model_path, weights=config.value_model == "shared" or not shapes_only
    )
    if config.value_model == "shared":
        head = hf.load_value_head(folder, model)
        console.print(f"value head from {folder}")
        return model, {"score": head}, None
    loaded = hf.load_model(
        folder, head="score", placement=parallel.placement, shapes_only=shapes_only
    )
    console.print(f"value model from {loaded.describe()}")
    if loaded.config.vocab_size < model.num_logits:
        expected = f"a vocabulary of at least the policy's {model.num_logits} tokens"
        raise ModelError(
            f"value_model_path: expected {expected}, got {loaded.config.vocab_size} in {folder}"
        )
    is_frozen = config.peft.use_peft
    base = base_of(config.value_model_path, loaded, loaded.config, "score", is_frozen=is_frozen)
    return loaded.config, loaded.params, base


def start_adapter(
    config: PeftConfig, model: ModelConfig, base: Params
) -> tuple[lora.LoraConfig | None, Params | None]:
    """Return shape and parameters of the adapter that a language model starts from; None where there is none.

    Args:
        config: names the folder.
        model: under the adapter.
        base: its parameters.

    Raises:
        ModelError: the folder is missing, or holds no adapter of this model.
    """
    if config.lora_path is None:
        return None, None
    shape, adapter = hf.peft.load_adapter(config.lora_path, model, base)
    if "score" in adapter:
        description = f"one with a score head in {config.lora_path}"
        raise ModelError(f"lora_path: expected an adapter of a language model, got {description}")
    return shape, adapter


def adapter_of(config: PeftConfig) -> LoraConfig:
    """Return the shape of the adapters that a configuration asks for."""
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        # PEFT's name for all of them, which is what None says here.
        target_modules=None
        if config.lora_target_modules == ("all-linear",)
        else config.lora_target_modules,
        use_rslora=config.use_rslora,
    )
