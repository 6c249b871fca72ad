"""What a run trains and what it keeps frozen: policy, value model, adapters and reference, from their parameters."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.nn import ModelConfig, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import ops, optimizer, trajectories, update
from jaxppo.rl.start import adapter_of
from jaxppo.types import Params, TrainState


class TrainedModels:
    """Policy and value model of a run, whole or as adapters on frozen weights.

    Args:
        config: hyper-parameters.
        model: architecture of policy and reference.
        value_model: architecture of a separate value model.
        parallel: devices.
        adapter: shape of the LoRA adapters; default: as configured.

    Attributes:
        model: that of the policy as it computes, in the configured dtype.
        value_model: likewise.
        has_value_model: whether the algorithm learns a value function.
        adapter: shape of the adapters; None: all weights are trained.
        trained_models: architectures of what is trained: the policy, and a separate value model.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: ModelConfig,
        value_model: ModelConfig,
        parallel: DataParallel,
        adapter: LoraConfig | None,
    ):
        self.config = config
        self.parallel = parallel
        self.model = models.with_dtype(model, config.dtype, config.run.attention)
        self.value_model = models.with_dtype(value_model, config.dtype, config.run.attention)
        for architecture in (self.model, self.value_model):
            parallel.check_model(architecture)
        self.adapter: LoraConfig | None = None
        if config.peft.use_peft:
            self.adapter = adapter or adapter_of(config.peft)
            if adapter is None:
                lora.check_targets(self.model, self.adapter)
        self.has_value_model = config.rl.spec.needs_values
        architectures = [self.model]
        if self.has_value_model and config.value_model == "separate":
            architectures.append(self.value_model)
        checkpointing = config.gradient_checkpointing
        self.trained_models = [
            models.with_checkpointing(architecture, checkpointing) for architecture in architectures
        ]
        self._optimizer = optimizer.make_optimizer(config.optimizer)

    def init_state(
        self, policy: Params, value: Params | None = None, adapter: Params | None = None
    ) -> TrainState:
        """Make the state before the first update, on all devices; copies, as updates take over the memory of a state.

        Layers that are one loop are stacked (`parallel/stacks.py`), unless their adapters differ.
        With `use_peft` the given models are frozen, shared and not copied; what is copied and trained are adapters and
        the value head.

        Args:
            policy: {"trunk", "lm_head"}.
            value: {"trunk", "score"} or, for `value_model: shared`, {"score"}. Default: the policy's trunk (`shared`)
                or a copy of it (`separate`), with a head of zero weights, so that every value starts at 0. A value
                model without a head gets this head. Only PPO has a value model.
            adapter: of the policy, to start from; default: a fresh one.
        """
        adapters: Params = {} if self.adapter is None else self._init_adapters(adapter)
        policy = models.for_training(self.trained_models[0], policy, adapters.get("policy"))
        if self.adapter is not None:
            policy = self.parallel.put(policy)  # once, so that the value model can share it
        # Models as a whole first, whichever part of them is trained: adapters are split off below.
        whole_models = {"policy": policy}
        if self.has_value_model:
            if value is not None:
                value = models.for_training(self.trained_models[-1], value, adapters.get("value"))
            whole_models["value"] = self._with_score_head(policy, value)
        if self.adapter is None:
            trained, frozen = whole_models, None
        else:
            trained, frozen = split_adapters(whole_models, adapters)
            if value is None or "trunk" not in value:
                # A program that got the policy's trunk once more would hold it twice.
                frozen.pop("value", None)
        # The first update donates the memory of this state:
        # without copies it would write over what was given.
        copies = jax.tree.map(lambda x: jnp.array(x, copy=True), trained)
        controls = trajectories.initial_controls(self.config.rl)
        state = self.parallel.put(update.init_state(copies, self._optimizer, controls))
        return state._replace(frozen=self.parallel.put(frozen))

    def _with_score_head(self, policy: Params, value: Params | None) -> Params:
        shared = self.config.value_model == "shared"
        if value is None:
            value = {} if shared else {"trunk": policy["trunk"]}
        if "score" in value:
            return value
        key = ops.purpose_key(self.config.run.seed, ops.Purpose.INIT)
        # Zero weights: the first advantages are then
        # those of plain returns, not of a random critic.
        return value | {
            "score": models.init_score_head(self.value_model, key, scale=0.0, use_bias=shared)
        }

    def _init_adapters(self, policy_adapter: Params | None) -> Params:
        """Draw the adapters of policy and value model; the policy's may be given."""
        assert self.adapter is not None
        seed = self.config.run.seed
        if policy_adapter is None:
            key = ops.purpose_key(seed, ops.Purpose.POLICY_ADAPTER)
            policy_adapter = lora.init_adapter(self.model, self.adapter, key)
        key = ops.purpose_key(seed, ops.Purpose.VALUE_ADAPTER)
        value_adapter = lora.init_adapter(self.value_model, self.adapter, key)
        return {"policy": policy_adapter, "value": value_adapter}

    def models_of(self, state: TrainState) -> Params:
        """Return {"policy", "value"} as `models.apply` takes them, adapters attached, without copies where possible."""
        return self.attached(state.frozen, state.params)

    def attached(self, frozen: Params | None, trained: Params) -> Params:
        """Return `models_of` a state with these parameters."""
        if frozen is None:
            return trained
        assert self.adapter is not None
        bases = frozen_bases(frozen, trained)
        whole_models: Params = {}
        for name, adapter in trained.items():
            whole_models[name] = lora.attach(bases[name], adapter, self.adapter.scale)
        return whole_models

    def reference(self, state: TrainState, policy: Params) -> Params | None:
        """Return the reference on all devices, the policy at the start of the run; None with kl_coef 0.

        Frozen weights are shared with it, and an adapter that the policy starts from is copied.

        Args:
            state: before the first update.
            policy: what the run starts from.
        """
        if not self.config.rl.has_reference:
            return None
        if state.frozen is None:
            reference = models.for_training(self.trained_models[0], policy)
            return self.parallel.put(models.cast(self.model, reference))
        if self.config.peft.lora_path is None:
            # A fresh adapter changes nothing (its B is 0), so
            # the frozen weights are the policy at the start.
            return state.frozen["policy"]
        adapter = jax.tree.map(jnp.copy, state.params["policy"])
        return self.attached(state.frozen, {"policy": adapter})["policy"]

    def with_changed_settings(self, state: TrainState, names: Collection[str]) -> TrainState:
        """Return a restored state under settings that a resumed run has changed.

        The KL coefficient is part of the state, where the controller moves it: a new one is where that starts from.

        Args:
            state: of a checkpoint.
            names: the settings that have another value now.
        """
        if "kl_coef" not in names:
            return state
        assert state.controls is not None  # only supervised training has none
        kl_coef = self.parallel.put(jnp.float32(self.config.rl.kl_coef))
        return state._replace(controls=state.controls._replace(kl_coef=kl_coef))

    def persistent_arrays(self, state: TrainState, policy: Params) -> dict[str, Any]:
        """Return what is on the devices throughout a run, by name: trees of shapes.

        Args:
            state: shapes of what `init_state` makes of these models.
            policy: shapes of the policy.
        """
        arrays: dict[str, Any] = {f"{name} to train": tree for name, tree in state.params.items()}
        arrays["optimizer"] = state.opt_state
        has_reference = self.config.rl.has_reference
        if state.frozen is None:
            if has_reference:
                arrays["reference"] = jax.eval_shape(self.reference, state, policy)
            return arrays
        arrays["frozen base"] = state.frozen["policy"]
        if self.config.peft.lora_path is not None and has_reference:
            arrays["adapter of the reference"] = state.params["policy"]
        if "value" in state.frozen:
            arrays["frozen value base"] = state.frozen["value"]
        return arrays


def frozen_bases(frozen: Params, trained: Params) -> Params:
    """Return the frozen weights under each model that is trained, by name.

    Args:
        frozen: of the state: {"policy"}, and {"value"} where the value model has a trunk of its own.
        trained: parameters of the state. A value model that has adapters and no trunk of its own shares the policy's;
            one that is a head has nothing frozen of its own.
    """
    bases = dict(frozen)
    if "value" in trained and "value" not in frozen:
        is_head = "trunk" not in trained["value"]
        bases["value"] = {} if is_head else {"trunk": frozen["policy"]["trunk"]}
    return bases


def split_adapters(whole_models: Params, adapters: Params) -> tuple[Params, Params]:
    """Split models into what is trained and the frozen weights under it, both with layers stacked or both not."""
    trained: Params = {}
    frozen: Params = {}
    for name, model in whole_models.items():
        frozen[name] = {part: params for part, params in model.items() if part != "score"}
        trained[name] = {"score": model["score"]} if "score" in model else {}
        if "trunk" in model:
            is_stacked = stacks.is_stacked(model["trunk"]["layers"])
            trained[name] |= stacks.stack(adapters[name]) if is_stacked else adapters[name]
    return trained, frozen
