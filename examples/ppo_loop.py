"""PPO on planning problems, from top to bottom on one page: no run folder, no checkpoints, no report.

    python examples/ppo_loop.py                  # about a minute on two CPU cores, half of it compilation
    python examples/ppo_loop.py --updates 60     # long enough to see the share of valid plans double and more

The model is the one that jaxppo ships, a small GPT-NeoX that has seen optimal plans for Blocksworld problems; the
problems are built in. `jaxppo/train.py` is the same loop with everything that a long run needs around it.
"""

import argparse
from typing import NamedTuple

import jax
import numpy as np

import jaxppo
from jaxppo.planning import format_action, parse_completion

# No invalid plan may earn as much as a valid one, or the
# policy could stop at copying most of the reference.
BEST_INVALID = 0.999


class Update(NamedTuple):
    """What one update shows."""

    reward: float  # mean over the batch
    valid: float  # fraction of valid plans
    kl: float  # nats per completion, from the model that the run started from


def plan_reward(completion: str, row: dict) -> tuple[float, bool]:
    """1.0 for a plan that the validator accepts, else the longest run of actions shared with the reference plan."""
    # The model writes its own short notation. What is no list of actions earns nothing: its
    # readable start could be a plan with junk hidden behind it.
    plan = parse_completion(completion, row["prompt_style"], row["domain_pddl"])
    if plan.error is not None:
        return 0.0, False
    actions = [format_action(action) for action in plan.actions]
    verdict = jaxppo.validate_plan(row["domain_pddl"], row["problem_pddl"], "\n".join(actions))
    if verdict.valid:
        return 1.0, True
    # A reward of valid or not is rare at first and says nothing about being close; LCCS is denser.
    # Dividing by the longer of both plans makes junk cost something.
    return min(jaxppo.lccs(actions, row["reference_plan"]), BEST_INVALID), False


def ppo_loop(
    updates: int, batch_size: int, seed: int = 0, model: str = "blocksworld-sft"
) -> list[Update]:
    """Train for some updates and print each."""
    # Every hyper-parameter has TRL's name. `total_episodes`
    # sets the end of the learning-rate schedule.
    config = jaxppo.replace(
        jaxppo.TrainConfig(),
        batch_size=batch_size,
        total_episodes=updates * batch_size,
        num_ppo_epochs=1,  # sampling is cheap at this size, so each completion is used once
        num_mini_batches=1,
        # For a model of 342 thousand parameters; a large one wants 1e-6 to 1e-5
        learning_rate=6e-4,
        value_learning_rate=2e-3,
        warmup_steps=4,
        lam=0.98,
        kl_coef=0.02,
        temperature=1.0,
        response_length=48,
        seed=seed,
    )

    # Policy, reference and value model begin as the same weights. The value model gets a fresh head
    # of zeros on a copy of the policy's trunk, so it starts by predicting 0 everywhere.
    policy = jaxppo.load_policy(model)
    tokenizer = policy.tokenizer
    ppo = jaxppo.PPO(
        config, policy.config, tokenizer.eos_token_id, tokenizer.pad_token_id, jaxppo.DataParallel()
    )
    state = ppo.init_state(policy.params)
    reference = ppo.reference(state, policy.params)

    # One length for all prompts: each new shape would compile the programs again.
    rows = jaxppo.load_split(config.data, "rl")
    prompts = jaxppo.encode_prompts(tokenizer, rows, config.data.max_prompt_length)
    longest = max(map(len, prompts))
    # Every problem once before any comes again.
    order = np.random.default_rng(seed).permutation(len(rows))

    history = []
    for step in range(updates):
        chosen = [
            int(order[i % len(rows)]) for i in range(step * batch_size, (step + 1) * batch_size)
        ]

        # 1. Sample. Prompts are padded on the left, so that all completions start in one column.
        batch = jaxppo.pad_left([prompts[i] for i in chosen], longest, tokenizer.pad_token_id)
        rollout = ppo.generate(state, batch, step)

        # 2. Score. The reference's log-probabilities and the values of every token, in one pass
        #    over sequences that are packed to the right length. The call returns at once: the
        #    device works while the host looks at the plans.
        sequences = ppo.pack(batch, rollout)
        scored = ppo.score(state, reference, sequences, rollout)

        # 3. Reward, on the host: any Python will do, as nothing of it is compiled or differentiated.
        ids, mask = np.asarray(rollout.completion_ids), np.asarray(rollout.completion_mask)
        completions = jaxppo.decode(tokenizer, ids, mask, ppo.end_ids)
        judged = [plan_reward(text, rows[i]) for text, i in zip(completions, chosen, strict=True)]
        scores = [reward for reward, _ in judged]

        # 4. Estimate advantages. The score comes with the last token and a KL penalty with each;
        #    GAE compares what came with what the value model had expected.
        state, trajectories, stats = ppo.make_trajectories(
            state, scored, rollout, sequences, scores
        )

        # 5. Learn: all epochs and mini-batches in one compiled program, which takes over the
        #    memory of the old state.
        state, update_stats = ppo.update(state, trajectories, step)

        stats = jax.device_get(stats | update_stats)  # what metrics.jsonl of a run would hold
        valid = float(np.mean([is_valid for _, is_valid in judged]))
        history.append(Update(float(np.mean(scores)), valid, float(stats["objective/kl"])))
        print(
            f"update {step + 1:3}  reward {history[-1].reward:.3f}  valid {valid:5.1%}  kl {history[-1].kl:+.4f}"
        )

    # To export it, with `params = jax.device_get(state.params["policy"])`:
    # jaxppo.save_pretrained("policy", ppo.model, params, tokenizer)
    return history


def main() -> None:
    """Read the flags and run the loop."""
    parser = argparse.ArgumentParser(description="PPO on Blocksworld plans, on one page")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--model", default="blocksworld-sft", help="a Hugging Face folder, hub id or shipped model"
    )
    flags = parser.parse_args()
    ppo_loop(flags.updates, flags.batch_size, flags.seed, flags.model)


if __name__ == "__main__":
    main()
