"""Updates of a tiny model on the devices of this process, or of several: what tests compare between devices and modes.

Run as a script, since the number of devices and processes is fixed when JAX starts:

    python tests/device_modes.py OUT.pickle CASE... [--process I/N HOST:PORT]

A case is NAME:MODE[:MESH], the name one of CONFIGS, e.g. ppo:fsdp:fsdp=4,tensor=2, or NAME:one for the first device
alone.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxppo import data, models
from jaxppo.config import RunConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn import ModelConfig, ModelSource
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.parallel import partition, processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import padding
from jaxppo.rl.learner import PPO

EOS, PAD, ROWS, LENGTH, UPDATES = 0, 1, 16, 6, 2
TOKENS = 21  # of a vocabulary that is padded to 24
TINY = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "initializer_range": 0.3}
TINY |= {"eos_token_id": EOS, "pad_token_id": PAD}
MODEL = GPTNeoXConfig(**TINY, num_attention_heads=2)
QWEN3 = LlamaConfig(
    **TINY,
    model_type="qwen3",
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    source=ModelSource(num_tokens=TOKENS),
)
GPT2 = GPT2Config(**TINY, num_attention_heads=2, max_position_embeddings=32)
PPO_CONFIG = replace(
    TrainConfig(),
    batch_size=ROWS,
    num_ppo_epochs=2,
    num_mini_batches=1,
    response_length=LENGTH,
    learning_rate=1e-3,
    total_episodes=ROWS * 100,
)
RLOO_CONFIG = replace(PPO_CONFIG, algorithm="rloo", num_generations=2)
CONFIGS = {
    "ppo": (PPO_CONFIG, MODEL),
    "rloo": (RLOO_CONFIG, QWEN3),
    "lora": (replace(RLOO_CONFIG, use_peft=True, lora_r=4, gradient_accumulation_steps=2), GPT2),
}


def prompts_of(config: TrainConfig) -> Any:
    """The prompts of a batch."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, TOKENS, rng.integers(3, 9)).tolist() for _ in range(config.num_prompts)]
    return data.pad_left(rows, 8, PAD)


def recorded() -> list[list[int]]:
    """Completions that no model has sampled; some end, some are cut."""
    rng = np.random.default_rng(1)
    rows = [rng.integers(2, TOKENS, rng.integers(1, LENGTH)).tolist() for _ in range(ROWS)]
    return [[*row, EOS] if i % 3 else row for i, row in enumerate(rows)]


def run(config: TrainConfig, model: ModelConfig, parallel: DataParallel) -> dict[str, Any]:
    """An update from the recorded completions, and several whole updates."""
    prompts = prompts_of(config)
    length_gaps = data.length_gaps(prompts.prompt_mask.sum(axis=1).tolist())[:1]  # two lengths to compile, not four
    ppo = PPO(config, model, EOS, PAD, parallel, length_gaps=length_gaps)
    policy, other = (jax.device_get(models.init_params(model, jax.random.key(seed))) for seed in (0, 1))
    if model.num_logits < model.vocab_size:  # the rows beyond have the largest logits
        policy["lm_head"]["kernel"] = policy["lm_head"]["kernel"] * np.where(np.arange(24) < TOKENS, 1, 40)
    value = {"trunk": other["trunk"], "score": {"kernel": np.full((16, 1), 0.1, np.float32)}}
    near = jax.tree.map(lambda x, y: np.float32(0.9) * x + np.float32(0.1) * y, policy, other)
    reference = parallel.put(near)

    def start() -> Any:
        return ppo.init_state(policy, value if ppo.has_value_model else None)

    def learn(state: Any, rollout: Any, scores: np.ndarray, step: int) -> tuple[Any, dict[str, Any]]:
        sequences = ppo.pack(prompts, rollout)
        scored = ppo.score(state, reference, sequences, rollout)
        state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, scores)
        state, update_stats = ppo.update(state, trajectories, step)
        return state, jax.device_get(stats | update_stats)

    scores = np.linspace(-0.5, 1.0, ROWS, dtype=np.float32)
    after, stats = learn(start(), ppo.rollout_of(recorded()), scores, 0)
    result = {"stats": stats, "params": parallel.to_host(after.params), "completions": [], "whole": []}
    state = start()
    for step in range(UPDATES):
        rollout = ppo.generate(state, prompts, step)
        ids = parallel.to_host(rollout.completion_ids)
        state, stats = learn(state, rollout, np.asarray(np.mean(ids % 2, axis=1), np.float32), step)
        result["completions"].append(ids)
        result["whole"].append(stats)
    shards = jax.tree.map(lambda x: x.addressable_shards[0].data.nbytes, (state.params, state.opt_state))
    return result | {"device_bytes": sum(jax.tree.leaves(shards))}


def main(out: str, *args: str) -> None:
    """Run the cases, and write what the first process has to a file."""
    jax.config.update("jax_default_matmul_precision", "highest")
    padding.padded_length = lambda _, row, longest: min(data.bucket(row, 14), longest)  # one program each
    padding.SEQUENCE_BUCKET = 1  # micro-batches of rows this short are cut, too
    padding.WORTH_CUTTING = 0.99
    partition.MAX_GATHERED_SHARE = 0  # decoding leaves weights in their shards, as it does where they are large
    cases = list(args)
    if "--process" in cases:
        at = cases.index("--process")
        (number, count), address = map(int, cases[at + 1].split("/")), cases[at + 2]
        processes.join(RunConfig(distributed=f"{address},{number}/{count}"))
        del cases[at : at + 3]
    results = {}
    for case in cases:
        algorithm, mode, *mesh = case.split(":")
        one = DataParallel(devices=jax.devices()[:1]) if mode == "one" else None
        results[case] = run(*CONFIGS[algorithm], one or DataParallel(mode, mesh=mesh[0] if mesh else None))
        print(case, flush=True)
    if processes.is_first():
        Path(out).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
