"""PPO updates of TRL 1.12, one per line on standard input; `ppo_update.py` starts it and gives it the sizes.

The same work as the other contestants: random models for policy, reference, value and reward, one mini-batch,
nothing written to disk, on the CPU unless torch finds a GPU. A second argument is JAX's platform: where that is an
accelerator and torch finds no GPU, this fails.
"""

import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig, inject_adapter_in_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from turns import Clock


class Turns(TrainerCallback):
    """Waits for its turn before every update, and reports it afterwards."""

    def __init__(self):
        self._clock = Clock()

    def on_train_begin(self, *args, **kwargs):
        self._clock.ready()

    def on_step_end(self, *args, **kwargs):
        # As JAX counts: what arrays took at most, not what the allocator keeps
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        self._clock.done(peak_bytes=peak)


def main() -> None:
    work = json.loads(sys.argv[1])
    if sys.argv[2:] not in ([], ["cpu"]) and not torch.cuda.is_available():
        raise RuntimeError("expected a GPU, as JAX has an accelerator; torch sees none")
    vocab, batch, prompt = work["vocab"], work["batch"], work["prompt"]
    sizes = {
        "vocab_size": vocab,
        "hidden_size": work["hidden"],
        "num_hidden_layers": work["layers"],
        "num_attention_heads": work["heads"],
        "intermediate_size": work["inner"] or 4 * work["hidden"],
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "num_labels": 1,
        "attn_implementation": "sdpa",
    }
    if work["kv_heads"] is None:
        config = GPTNeoXConfig(**sizes)
    else:
        sizes |= {"num_key_value_heads": work["kv_heads"], "tie_word_embeddings": True}
        if work["head_dim"] is None:
            config = LlamaConfig(**sizes)
        else:
            config = Qwen3Config(**sizes, head_dim=work["head_dim"])
    words = {"<eos>": 0, "<pad>": 1} | {f"w{i}": i for i in range(2, min(500, vocab))}
    core = Tokenizer(models.WordLevel(words, unk_token="w2"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )
    torch.manual_seed(0)
    policy, reference = (AutoModelForCausalLM.from_config(config) for _ in range(2))
    reference.load_state_dict(policy.state_dict())
    reward, value = (AutoModelForSequenceClassification.from_config(config) for _ in range(2))
    adapters = None
    if work["rank"] is not None:
        adapters = LoraConfig(r=work["rank"], target_modules="all-linear")
        inject_adapter_in_model(
            LoraConfig(r=work["rank"], target_modules="all-linear", exclude_modules=["score"]),
            value,
        )
        value.score.requires_grad_(True)
        reference = None  # the policy without its adapter
    rng = np.random.default_rng(0)
    lengths = rng.integers(prompt // 2, prompt + 1, 512)
    prompts = Dataset.from_list(
        [{"input_ids": rng.integers(2, len(words), n).tolist()} for n in lengths]
    )
    settings = PPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch // work["parts"],
        gradient_accumulation_steps=work["parts"],
        num_mini_batches=1,
        num_ppo_epochs=work["epochs"],
        response_length=work["response"],
        total_episodes=batch * 1000,
        temperature=0.7,
        stop_token="eos",
        missing_eos_penalty=1.0,
        num_sample_generations=0,
        local_rollout_forward_batch_size=batch,
        bf16=work["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        eval_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        peft_config=adapters,
        reward_model=reward,
        value_model=value,
        train_dataset=prompts,
        eval_dataset=prompts.select(range(8)),
        callbacks=[Turns()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
