"""PPO updates of Tunix 0.1.7, one per line on standard input; `ppo_update.py` starts it and gives it the sizes.

Runs in an environment of its own: `pip install google-tunix==0.1.7`. Tunix has no GPT-NeoX, so the models are Qwen2's
shapes with as many parameters: three matrices of 8/3 D columns in the MLP in place of two of 4 D. Tunix computes a
reward function on the host once per update, and nothing else goes on while it does, so that is where a turn begins and
ends: from the middle of one update to the middle of the next. There is no reward model, which saves it a forward pass.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import jax
import numpy as np
import optax
from flax import nnx
from grain import python as grain
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from tunix.models.qwen2 import model as qwen2
from tunix.rl import rl_cluster, utils
from tunix.rl.ppo import ppo_learner
from tunix.rl.rollout import base_rollout
from turns import Clock

BATCHES = 1000
"""Batches of prompts; more than anybody waits for."""


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    words = {"<eos>": 0, "<pad>": 1, "<bos>": 2} | {f"w{i}": i for i in range(3, min(500, vocab))}
    core = Tokenizer(models.WordLevel(words, unk_token="w3"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<eos>",
        pad_token="<pad>",
        bos_token="<bos>",
        padding_side="left",
    )
    encode = tokenizer.encode
    # Tunix hands over numpy's strings
    tokenizer.encode = lambda text, **options: encode(str(text), **options)
    return tokenizer


def main() -> None:
    work = json.loads(sys.argv[1])
    hidden, heads, batch, prompt, response = (
        work[k] for k in ("hidden", "heads", "batch", "prompt", "response")
    )
    dtype = jax.numpy.dtype(work["dtype"])
    config = qwen2.ModelConfig(
        num_layers=work["layers"],
        vocab_size=work["vocab"],
        embed_dim=hidden,
        hidden_dim=int(4 * hidden * 2 / 3),
        num_heads=heads,
        head_dim=hidden // heads,
        num_kv_heads=heads,
        rope_theta=10000,
        norm_eps=1e-5,
        **({} if dtype == np.float32 else {"dtype": dtype}),
    )
    make = lambda seed: qwen2.Qwen2(config, rngs=nnx.Rngs(seed))  # noqa: E731
    rng = np.random.default_rng(0)
    lengths = rng.integers(prompt // 2, prompt - 1, batch * BATCHES)  # one token is left for <bos>
    prompts = [
        " ".join(f"w{i}" for i in rng.integers(3, min(500, work["vocab"]), length))
        for length in lengths
    ]
    data = grain.MapDataset.source(prompts).batch(batch).map(lambda rows: {"prompts": rows})
    clock, started = Clock(), False

    def reward(prompts, completions, **columns):
        nonlocal started
        if started:
            clock.done()
        else:
            clock.ready()
        started = True
        return [float(len(completion) % 7) for completion in completions]

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 1), ("fsdp", "tp"))
    roles = rl_cluster.Role
    settings = rl_cluster.ClusterConfig(
        role_to_mesh={
            role: mesh
            for role in (roles.ACTOR, roles.CRITIC, roles.REFERENCE, roles.ROLLOUT, roles.REWARD)
        },
        rollout_engine="vanilla",
        offload_to_cpu=False,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(3e-6),
            critic_optimizer=optax.adamw(3e-6),
            eval_every_n_steps=10**9,
            max_steps=BATCHES * work["epochs"],
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=response,
            max_prompt_length=prompt,
            kv_cache_size=prompt + response + 1,
            temperature=0.7,
        ),
    )
    with mesh:
        cluster = rl_cluster.RLCluster(
            actor=make(0),
            critic=utils.create_critic_model(make(1)),
            reference=make(0),
            reward=None,
            tokenizer=make_tokenizer(work["vocab"]),
            cluster_config=settings,
        )
        learner = ppo_learner.PPOLearner(
            rl_cluster=cluster,
            reward_fns=reward,
            ppo_config=ppo_learner.PPOConfig(num_iterations=work["epochs"]),
        )
        learner.train(data)


if __name__ == "__main__":
    main()
