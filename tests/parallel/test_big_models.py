"""Programs of models too big to allocate here, compiled from shapes alone: bytes per device, and who talks to whom."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn import ModelConfig
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl.ppo import PPO
from jaxppo.types import PromptBatch, Sequences, Trajectories, Weights

ROWS, PROMPT, LENGTH = 16, 32, 16
PYTHIA_1B = GPTNeoXConfig(
    vocab_size=50304, hidden_size=2048, num_hidden_layers=16, num_attention_heads=8, intermediate_size=8192
)
PYTHIA_1B_TWO_LAYERS = dataclasses.replace(PYTHIA_1B, num_hidden_layers=2)
PYTHIA_7B = GPTNeoXConfig(
    vocab_size=50432, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=16384
)
PUBLISHED = {  # as their config.json has them, and how many parameters that makes
    "qwen3-0.6b": (
        LlamaConfig(
            model_type="qwen3",
            vocab_size=151936,
            hidden_size=1024,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=3072,
            tie_word_embeddings=True,
        ),
        596_049_920,
    ),
    "qwen2.5-1.5b": (
        LlamaConfig(
            model_type="qwen2",
            vocab_size=151936,
            hidden_size=1536,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            intermediate_size=8960,
            tie_word_embeddings=True,
        ),
        1_543_714_304,
    ),
    "llama-3.2-1b": (
        LlamaConfig(
            vocab_size=128256,
            hidden_size=2048,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            intermediate_size=8192,
            tie_word_embeddings=True,
        ),
        1_235_814_400,
    ),
    "qwen2-7b": (
        LlamaConfig(
            model_type="qwen2",
            vocab_size=152064,
            hidden_size=3584,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            intermediate_size=18944,
        ),
        7_615_616_512,
    ),
}
WIDE = GPTNeoXConfig(
    vocab_size=2048, hidden_size=512, num_hidden_layers=1, num_attention_heads=8, intermediate_size=2048
)
PPO_CONFIG = replace(
    TrainConfig(),
    batch_size=ROWS,
    num_mini_batches=1,
    gradient_accumulation_steps=1,
    local_rollout_forward_batch_size=ROWS,
    response_length=LENGTH,
    total_episodes=10 * ROWS,
    dtype="bfloat16",
)
RLOO_CONFIG = replace(PPO_CONFIG, algorithm="rloo", num_generations=2)
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Machine code is not what these tests look at."""

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


class Programs:
    """A PPO of some model, and its programs compiled from shapes."""

    def __init__(self, model: ModelConfig, config: TrainConfig, mode: str, mesh: str | None = None):
        self.parallel = DataParallel(mode, mesh=mesh)
        self.ppo = PPO(config, model, 0, 1, self.parallel)
        self.policy = jax.eval_shape(lambda: models.init_params(model, jax.random.key(0)))
        score = {"kernel": jax.ShapeDtypeStruct((model.hidden_size, 1), jnp.float32)}
        value = {"trunk": self.policy["trunk"], "score": score} if self.ppo.has_value_model else None
        self.state = self.placed(jax.eval_shape(self.ppo.init_state, self.policy, value))

    def placed(self, tree: Any) -> Any:
        """Shapes of parameters with their places."""
        shape = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)  # noqa: E731
        return jax.tree.map(shape, tree, self.parallel.shardings(tree))

    def generate(self) -> Any:
        groups = self.ppo.config.num_prompts
        prompts = PromptBatch(
            jax.ShapeDtypeStruct((groups, PROMPT), jnp.int32), jax.ShapeDtypeStruct((groups, PROMPT), jnp.bool)
        )
        draws = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.float32), jax.ShapeDtypeStruct((ROWS,), jnp.int32)
        return self.ppo._generate.lower(self.state.params["policy"], prompts, *draws).compile(FAST)

    def update(self) -> Any:
        def rows(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct((1, 1, ROWS, *shape), dtype)

        tokens = rows(LENGTH)
        mask = rows(LENGTH, dtype=jnp.bool)
        ids = rows(PROMPT + LENGTH, dtype=jnp.int32), rows(dtype=jnp.int32), rows(LENGTH, dtype=jnp.int32)
        sequences = Sequences(*ids, mask)
        if self.ppo.has_value_model:
            batch = Trajectories(sequences, tokens, tokens, tokens, tokens, tokens, mask)
            weights = Weights(tokens, tokens, tokens, tokens)
        else:
            batch, weights = Trajectories(sequences, tokens, rows(), rows()), Weights(tokens, rows(), rows())
        return self.ppo._update.lower(self.state, None, (batch, weights)).compile(FAST)

    @property
    def state_bytes(self) -> int:
        """By arithmetic: weights and Adam's two moments in fp32, those of matrices divided by all that split them."""
        sizes = self.parallel.sizes["fsdp"] * self.parallel.sizes["tensor"]
        weights = jax.tree.leaves(self.state.params)
        return sum(3 * 4 * w.size // (sizes if len(w.shape) > 1 else 1) for w in weights)


class Collective(NamedTuple):
    kind: str
    elements: int  # of its largest result
    looped: bool  # within the loop over tokens (of a program that has one loop)


def collectives(text: str) -> Iterator[Collective]:
    """Every collective operation of a compiled program."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    inside = ""
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            inside = head[1]
        if found := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line):
            shapes = re.findall(r"\w+\[([\d,]*)\]", found[1])
            elements = max(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes)
            yield Collective(found[2], elements, inside in bodies)


def check_state(programs: Programs, compiled: Any) -> None:
    """What goes in and out of an update is its state and little else, and the memory is used again."""
    memory = compiled.memory_analysis()
    print(f"arguments {memory.argument_size_in_bytes:,}, temporaries {memory.temp_size_in_bytes:,} bytes per device")
    assert memory.argument_size_in_bytes == pytest.approx(programs.state_bytes, rel=0.05)
    assert memory.output_size_in_bytes == pytest.approx(programs.state_bytes, rel=0.05)
    assert memory.alias_size_in_bytes == pytest.approx(programs.state_bytes, rel=0.05)


def split_matrices(programs: Programs) -> int:
    """Matrices that are split over `fsdp`: those of the layers, embedding and head."""
    return sum(w.sharding.shard_shape(w.shape) != w.shape for w in jax.tree.leaves(programs.state.params) if w.ndim > 1)


def check_learning(programs: Programs, compiled: Any) -> None:
    """Each split matrix is gathered in pieces of at most itself, and its gradient scattered, not summed whole.

    That of a tied embedding comes in two parts, of the look-up and of the head.
    """
    found = list(collectives(compiled.as_text()))
    largest = max(w.size for w in jax.tree.leaves(programs.state.params))
    gradients = split_matrices(programs) + programs.ppo.model.tie_word_embeddings
    assert sum(c.kind == "reduce-scatter" for c in found) == gradients
    assert sum(c.kind == "all-gather" for c in found) >= split_matrices(programs)
    assert max(c.elements for c in found if c.kind == "all-gather") <= largest
    tokens = ROWS * (PROMPT + LENGTH) * programs.ppo.model.hidden_size
    assert max(c.elements for c in found if c.kind == "all-reduce") <= tokens  # activations, norms and biases


def check_decoding(programs: Programs, compiled: Any) -> None:
    """Weights are gathered before the first token; from then on only activations and logits travel, over `tensor`."""
    found = list(collectives(compiled.as_text()))
    model = programs.ppo.model
    before = [c for c in found if not c.looped and c.elements >= model.hidden_size**2 // programs.parallel.num_devices]
    assert len(before) >= 4 * model.num_hidden_layers + 2
    travelling = [c.elements for c in found if c.looped]
    if programs.parallel.sizes["tensor"] == 1:
        assert travelling == []
    else:
        share = model.vocab_size // programs.parallel.sizes["tensor"]
        logits = [elements for elements in travelling if elements % share == 0]
        assert logits and max(logits) <= ROWS * model.vocab_size
        assert max({*travelling} - {*logits}) < model.hidden_size**2 // programs.parallel.num_devices


@pytest.mark.parametrize("fsdp", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_bytes_per_device_fall_with_fsdp(fsdp):
    programs = Programs(WIDE, PPO_CONFIG, "fsdp", f"data=-1,fsdp={fsdp}")
    check_state(programs, programs.update())


@pytest.mark.parametrize(
    ("model", "mesh", "parameters"),
    [
        pytest.param(PYTHIA_1B_TWO_LAYERS, "fsdp=4", 306_765_824, id="1b of two layers", marks=pytest.mark.full),
        # A minute of compilation and more.
        pytest.param(PYTHIA_1B, "fsdp=4", 1_011_781_632, id="1b", marks=pytest.mark.slow),
        pytest.param(PYTHIA_7B, "fsdp=2,tensor=2", 6_857_302_016, id="7b", marks=pytest.mark.slow),
        *(
            pytest.param(*published[:1], mesh, published[1], id=f"{name} {mesh}", marks=pytest.mark.slow)
            for name, published in PUBLISHED.items()
            for mesh in ("fsdp=4", "fsdp=2,tensor=2")
        ),
    ],
)
def test_big_models_are_split(model, mesh, parameters):
    programs = Programs(model, RLOO_CONFIG, "fsdp", mesh)
    assert programs.state_bytes == pytest.approx(12 * parameters / 4, rel=0.01)
    update = programs.update()
    check_state(programs, update)
    check_learning(programs, update)
    check_decoding(programs, programs.generate())


@pytest.mark.full
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen2-7b"])
def test_two_layers_of_the_published_shapes_are_split(name):
    model = dataclasses.replace(PUBLISHED[name][0], num_hidden_layers=2)
    programs = Programs(model, RLOO_CONFIG, "fsdp", "fsdp=2,tensor=2")
    update = programs.update()
    check_state(programs, update)
    check_learning(programs, update)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_have_as_many_parameters_as_their_cards_say(name):
    model, parameters = PUBLISHED[name]
    shapes = jax.eval_shape(lambda: models.init_params(model, jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.mark.full
def test_data_parallel_decoding_talks_to_nobody():
    assert list(collectives(Programs(WIDE, PPO_CONFIG, "shard_map").generate().as_text())) == []
    assert list(collectives(Programs(WIDE, PPO_CONFIG, "fsdp", "data=-1").generate().as_text())) == []
    learning = list(collectives(Programs(WIDE, PPO_CONFIG, "shard_map").update().as_text()))
    assert {c.kind for c in learning} == {"all-reduce"}
