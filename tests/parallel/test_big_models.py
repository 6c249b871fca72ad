"""Programs of models too big to allocate here, compiled from shapes alone: bytes per device, and who talks to whom."""

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
from jaxppo.rl.learner import PPO
from jaxppo.types import PromptBatch, Sequences, Trajectories, Weights

ROWS, PROMPT, LENGTH = 16, 32, 16
# Two layers of models as published.
PYTHIA_1B = GPTNeoXConfig(
    vocab_size=50304, hidden_size=2048, num_hidden_layers=2, num_attention_heads=8, intermediate_size=8192
)
QWEN3 = LlamaConfig(
    model_type="qwen3",
    vocab_size=151936,
    hidden_size=1024,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=3072,
    tie_word_embeddings=True,
)
WIDE = GPTNeoXConfig(
    vocab_size=2048, hidden_size=512, num_hidden_layers=1, num_attention_heads=8, intermediate_size=2048
)
CONFIG = replace(
    TrainConfig(),
    algorithm="rloo",  # half as much to compile as with a value model
    num_generations=2,
    batch_size=ROWS,
    num_mini_batches=1,
    gradient_accumulation_steps=1,
    local_rollout_forward_batch_size=ROWS,
    response_length=LENGTH,
    total_episodes=10 * ROWS,
    dtype="bfloat16",
)
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Machine code is not what these tests look at."""

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


class Programs:
    """A PPO of some model, and its programs compiled from shapes."""

    def __init__(self, model: ModelConfig, mode: str, mesh: str | None = None):
        self.parallel = DataParallel(mode, mesh=mesh)
        self.ppo = PPO(CONFIG, model, 0, 1, self.parallel)
        policy = jax.eval_shape(lambda: models.init_params(model, jax.random.key(0)))
        self.state = self.placed(jax.eval_shape(self.ppo.init_state, policy))

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
        return self.ppo.sample_program.lower(self.state.params["policy"], prompts, *draws).compile(FAST)

    def update(self) -> Any:
        def rows(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct((1, 1, ROWS, *shape), dtype)

        tokens = rows(LENGTH)
        mask = rows(LENGTH, dtype=jnp.bool)
        ids = rows(PROMPT + LENGTH, dtype=jnp.int32), rows(dtype=jnp.int32), rows(LENGTH, dtype=jnp.int32)
        batch = Trajectories(Sequences(*ids, mask), tokens, rows(), rows())
        weights = Weights(tokens, rows(), rows())
        return self.ppo.update_program.lower(self.state, None, (batch, weights)).compile(FAST)

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
    assert memory.argument_size_in_bytes == pytest.approx(programs.state_bytes, rel=0.05)
    assert memory.output_size_in_bytes == pytest.approx(programs.state_bytes, rel=0.05)
    assert memory.alias_size_in_bytes == pytest.approx(programs.state_bytes, rel=0.05)


def split_matrices(programs: Programs) -> int:
    """Matrices that are split over `fsdp`: those of the layers, embedding and head."""
    return sum(w.sharding.shard_shape(w.shape) != w.shape for w in jax.tree.leaves(programs.state.params) if w.ndim > 1)


def check_learning(programs: Programs, compiled: Any) -> None:
    """Each split matrix is gathered in pieces of at most itself, and its gradient scattered, not summed whole.

    But for the embedding, to which ids travel: of a tied one this is the head's part.
    """
    found = list(collectives(compiled.as_text()))
    largest = max(w.size for w in jax.tree.leaves(programs.state.params))
    gradients = split_matrices(programs) - (not programs.ppo.model.tie_word_embeddings)
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


def test_an_update_is_split_over_devices():
    programs = Programs(WIDE, "fsdp", "fsdp=4")
    update = programs.update()
    check_state(programs, update)
    check_learning(programs, update)


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "mesh", "parameters"),
    [(PYTHIA_1B, "fsdp=4", 306_765_824), (QWEN3, "fsdp=2,tensor=2", 187_042_560)],
)
def test_big_models_are_split(model, mesh, parameters):
    programs = Programs(model, "fsdp", mesh)
    assert programs.state_bytes == pytest.approx(12 * parameters / 4, rel=0.01)
    update = programs.update()
    check_state(programs, update)
    check_learning(programs, update)
    check_decoding(programs, programs.generate())


@pytest.mark.full
def test_data_parallel_decoding_talks_to_nobody():
    assert list(collectives(Programs(WIDE, "shard_map").generate().as_text())) == []
    assert list(collectives(Programs(WIDE, "fsdp", "data=-1").generate().as_text())) == []
    learning = list(collectives(Programs(WIDE, "shard_map").update().as_text()))
    assert {c.kind for c in learning} == {"all-reduce"}
