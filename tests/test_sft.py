"""Supervised fine-tuning: the step, and the rows that it learns from."""

# ruff: noqa: F811 (`bases` is a fixture)
import dataclasses
import functools
import json
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxppo import data, hf, models, sft
from jaxppo.config import ExportConfig, SFTConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.data.batches import packed
from jaxppo.errors import ConfigError, DataError
from jaxppo.evaluate.held_out import ReferenceLoss
from jaxppo.export import export
from jaxppo.nn import lora
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.rl import optimizer, padding, update
from jaxppo.rl.supervised import SFT
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from jaxppo.run.preemption import Preempted
from tests.data.tokenizers import chat_tokenizer, write_rows
from tests.device_modes import MODEL
from tests.one_layer import ONE_LAYER
from tests.peft_models import LORA_CONFIGS, bases, peft_adapted, peft_gradients  # noqa: F401
from tests.torch_models import assert_equal_trees, random_params, torch, transformers

ROWS = [
    {"prompt": "<init> clear a <goal> on a b <plan>", "completion": "stack a b ; " * n + "pick-up a"} for n in range(5)
]
CONFIG = replace(SFTConfig(), batch_size=8, learning_rate=1e-2, total_episodes=80)
PARAMS = jax.device_get(models.init_params(MODEL, jax.random.key(0)))


@functools.cache
def one_step(num_devices: int, is_cut: bool = False):
    """What a step computes and leaves behind, and in how many micro-batches."""
    words = data.word_tokenizer({word for row in ROWS for word in f"{row['prompt']} {row['completion']}".split()})
    supervised = data.SupervisedData(ROWS, words, CONFIG.batch_size, 0, 64)
    parallel = DataParallel(devices=jax.devices()[:num_devices])
    state = update.init_state({"policy": jax.tree.map(np.copy, PARAMS)}, optimizer.make_optimizer(CONFIG.optimizer))
    learner = SFT(CONFIG, MODEL, parallel, supervised.length_gaps if is_cut else ())
    batch = learner.weighted(supervised.batch(0))
    after, stats = learner.program(parallel.put(state), parallel.put(batch, 2))
    return batch, jax.device_get(after.params), jax.device_get(stats)


@pytest.mark.full
@pytest.mark.parametrize(("num_devices", "is_cut"), [(1, False), (2, True)])
def test_micro_batches_that_fit_the_cache_change_nothing(monkeypatch, num_devices, is_cut):
    (rows, weights), params, stats = one_step(1)
    assert weights.shape[:3] == (1, 1, 8)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-6)
    assert stats["grad_norm"] > 0.01
    monkeypatch.setattr(memory, "rows_at_once", lambda *_: 2)
    monkeypatch.setattr(padding, "SEQUENCE_BUCKET", 1)
    apply, columns = models.apply, set()

    def spy(config, params, input_ids, **options):
        columns.add(input_ids.shape[1])
        return apply(config, params, input_ids, **options)

    monkeypatch.setattr(models, "apply", spy)
    (cut, _), cut_params, cut_stats = one_step.__wrapped__(num_devices, is_cut)
    assert (len(columns) > 1) == is_cut
    assert cut.input_ids.shape[:3] == (1, 4 // num_devices, 2 * num_devices)
    np.testing.assert_array_equal(cut.input_ids.reshape(8, -1), rows.input_ids.reshape(8, -1))
    for name, value in stats.items():
        np.testing.assert_allclose(cut_stats[name], value, rtol=0, atol=1e-5, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), cut_params, params)


def test_the_loss_is_the_mean_over_all_completion_tokens():
    (rows, weights), _, stats = one_step(1)
    rows, weights = jax.tree.map(lambda x: x[0, 0], (rows, weights))
    logits = models.apply(MODEL, PARAMS, rows.input_ids).logits
    total = count = 0.0
    for row in range(len(rows.input_ids)):
        for at in np.flatnonzero(rows.completion_mask[row]):
            before = rows.prompt_lengths[row] + at - 1
            total -= jax.nn.log_softmax(logits[row, before])[rows.completion_ids[row, at]]
            count += 1
    assert count == np.sum(weights > 0)
    np.testing.assert_allclose(stats["loss"], total / count, rtol=1e-5)


def test_a_model_is_read_into_its_shards():
    config = replace(SFTConfig(), model_path=ONE_LAYER)
    start = sft.start_model(config, DataParallel("fsdp").placement)
    kernels = [leaf for leaf in jax.tree.leaves(start.params) if leaf.ndim == 2]
    assert kernels and all(leaf.addressable_shards[0].data.size * 4 == leaf.size for leaf in kernels)


@pytest.mark.parametrize(
    ("family", "tied", "has_head"), [("gpt_neox", None, True), ("gpt_neox", True, False), ("gpt2", None, False)]
)
def test_a_fresh_model_ties_its_embeddings_where_its_settings_or_its_family_say_so(family, tied, has_head):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "dataset": "stream:ferry"}
    start = sft.start_model(
        replace(
            SFTConfig(),
            model_type=family,
            model_kwargs=None if tied is None else {"tie_word_embeddings": tied},
            **sizes,
        )
    )
    assert ("lm_head" in start.params) == has_head


# ------------------------------------------------------------------------------------------------------------- adapters

SHAPE = LoraConfig(r=4, lora_alpha=8)
LLAMA = LORA_CONFIGS["llama"]
TOKEN_ROWS = [  # of prompt, completion, and which tokens of it are learned
    data.EncodedRow([5, 6, 7], [8, 9, 10, 11], None),
    data.EncodedRow([12], [13, 14, 15, 16, 17], [True, False, False, True, True]),
]


def adapter_learner(parallel, **settings):
    config = replace(SFTConfig(), batch_size=2, learning_rate=1e-2, warmup_steps=0, **settings)
    return SFT(config, LLAMA, parallel, adapter=SHAPE)


@pytest.mark.full
def test_gradients_of_adapters_are_those_of_peft(bases, tmp_path):
    folder, base = bases["llama", "lm"]
    theirs = peft_adapted(folder, SHAPE, "llama")
    theirs.save_pretrained(tmp_path / "adapter")
    _, adapter = hf.peft.load_adapter(tmp_path / "adapter", LLAMA)
    learner = adapter_learner(DataParallel(devices=jax.devices()[:1]))
    batch = packed(TOKEN_ROWS, 8, 8, 0)
    sequences, weights = jax.tree.map(lambda x: x[0, 0], learner.weighted(batch))
    state = learner.init_state(base, adapter)

    def loss(trained):
        whole = learner.whole_model(state._replace(params=trained))
        return learner.loss(whole, sequences, weights)[0]

    value, gradients = jax.value_and_grad(loss)(state.params)
    labels = np.full(batch.input_ids.shape, -100)
    mask = np.zeros(batch.input_ids.shape, int)
    for number, row in enumerate(TOKEN_ROWS):
        start, end = len(row.prompt), row.length
        flags = row.loss_mask or [True] * len(row.completion)
        labels[number, start:end] = np.where(flags, row.completion, -100)
        mask[number, :end] = 1
    computed = theirs(
        torch.tensor(batch.input_ids), attention_mask=torch.tensor(mask), labels=torch.tensor(labels)
    ).loss
    computed.backward()
    np.testing.assert_allclose(value, computed.item(), atol=1e-5)
    held_out = ReferenceLoss(LLAMA, learner.parallel, 0, 1)(learner.whole_model(state), {"test": TOKEN_ROWS})
    np.testing.assert_allclose(held_out["test"]["loss"], computed.item(), atol=1e-5)
    expected = peft_gradients(theirs, tmp_path / "gradients", LLAMA)
    jax.tree.map(
        lambda ours, peft: np.testing.assert_allclose(ours, peft, atol=1e-5, rtol=0),
        stacks.unstack(gradients["policy"]),
        expected,
    )
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-3


@pytest.mark.full
def test_adapters_learn_the_same_in_every_mode_and_their_base_stays(bases):
    _, base = bases["llama", "lm"]
    learned = {}
    for mode, mesh in (("shard_map", None), ("pmap", None), ("fsdp", None), ("fsdp", "fsdp=2,tensor=2")):
        parallel = DataParallel(mode, jax.devices()[:4] if mesh else jax.devices()[:2], mesh)
        learner = adapter_learner(parallel)
        state = parallel.put(learner.init_state(jax.tree.map(jnp.array, base)))
        frozen = jax.device_get(parallel.to_host(state.frozen))
        for _ in range(2):
            batch = learner.weighted(packed(TOKEN_ROWS, 8, 8, 0))
            state, _ = learner.program(state, parallel.put(batch, 2))
        assert_equal_trees(parallel.to_host(state.frozen), frozen)
        learned[mode, mesh] = stacks.unstack(parallel.to_host(state.params))["policy"]
    first = learned.pop(("shard_map", None))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(first)) > 1e-3
    for other in learned.values():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=0), other, first)


CHATS = [
    {
        "messages": [
            {"role": "user", "content": "on a"},
            {"role": "assistant", "content": "stack a"},
            {"role": "user", "content": "on b" + " ;" * count},
            {"role": "assistant", "content": "unstack b" + " ;" * count},
        ]
    }
    for count in range(8)
]


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A small Llama with a chat template, and chats for it."""
    folder = tmp_path_factory.mktemp("chats")
    tokenizer = chat_tokenizer(eos="<|end|>")
    config = dataclasses.replace(LLAMA, vocab_size=24, eos_token_id=tokenizer.eos_token_id, pad_token_id=0)
    hf.save_pretrained(folder / "model", config, random_params(config), tokenizer)
    write_rows(folder / "data", train=CHATS, test=CHATS[:2])
    return folder


def chat_config(chats, folder, **changes):
    settings = {"model_path": str(chats / "model"), "dataset": str(chats / "data"), "eval_splits": ("test",)}
    settings |= {"reward_funcs": ("tests.reward_servers:length",), "response_length": 4, "quiet": True}
    settings |= {"batch_size": 4, "total_episodes": 16, "warmup_steps": 0, "learning_rate": 1e-2, "save_steps": 1}
    return replace(SFTConfig(), output_dir=str(folder), **settings, **changes)


def test_chats_are_evaluated_by_their_loss_without_a_reward(chats, tmp_path, capsys):
    # The split to evaluate has the rows to learn from, all of which are a step.
    dataset = write_rows(tmp_path / "data", train=CHATS, test=[*CHATS, {"prompt": "on a"}])
    flags = ["--model_path", str(chats / "model"), "--dataset", dataset, "--output_dir", str(tmp_path / "run")]
    flags += ["--batch_size", "8", "--total_episodes", "24", "--eval_steps", "1", "--assistant_only_loss"]
    flags += ["--max_length", "16", "--learning_rate", "1e-2", "--report_to", "none"]
    folder = sft.sft(parse_cli(SFTConfig, "sft", flags))
    printed = capsys.readouterr().out
    for words in (
        "test: evaluated by the loss alone",
        "--reward_funcs module:function",
        "1 of 9 rows left out: no completion",
    ):
        assert printed.count(words) == 1
    assert "test_longer left out" in printed and "best checkpoint: update 2" in printed
    first, second, last = read_metrics(folder / "metrics.jsonl")
    results = json.loads((folder / "eval.json").read_text())
    assert results.keys() == {"test"} and results["test"].keys() == {"loss", "loss_tokens"}
    # What a step learns from is measured before it, and an evaluation comes after it.
    np.testing.assert_allclose(first["eval/test/loss"], second["loss"], rtol=1e-5)
    np.testing.assert_allclose(second["eval/test/loss"], last["loss"], rtol=1e-5)
    assert "eval/test/loss" not in last and results["test"]["loss"] < second["eval/test/loss"]
    assert f"test: loss {results['test']['loss']:.4f} nats per token" in printed
    assert "loss on test, after training" in (folder / "report.html").read_text()
    assert "| test | loss | - |" in (folder / "policy" / "README.md").read_text()


def test_chats_are_learned_without_a_reward_and_with_the_splits_that_there_are(chats, tmp_path, capsys):
    dataset = write_rows(tmp_path / "data", train=CHATS)
    flags = ["--model_path", str(chats / "model"), "--dataset", dataset, "--output_dir", str(tmp_path / "run")]
    flags += ["--batch_size", "4", "--total_episodes", "8", "--report_to", "none"]
    folder = sft.sft(parse_cli(SFTConfig, "sft", flags))
    printed = capsys.readouterr().out
    assert printed.count("nothing is evaluated") == 1 and "--eval_splits names others" in printed
    assert len(read_metrics(folder / "metrics.jsonl")) == 2
    assert json.loads((folder / "eval.json").read_text()) == {}
    assert (folder / "policy" / "model.safetensors").exists()
    # The run goes on with the settings that it was given.
    longer = ["--resume", "--total_episodes", "12", "--allow_changes", "total_episodes"]
    sft.sft(parse_cli(SFTConfig, "sft", [*flags, *longer]))
    assert len(read_metrics(folder / "metrics.jsonl")) == 3


@pytest.mark.parametrize(
    ("flags", "remaining", "words"),
    [
        ([], ("test",), "test: evaluated by the loss alone"),
        (["--eval_splits", "test"], ("test",), "test: evaluated by the loss alone"),
        (["--eval_splits"], (), None),
        (["--reward_funcs", "a:b"], ("test",), "eval_splits: test_longer left out"),
        (["--reward_funcs", "a:b", "--preset", "tiny"], ("test",), "eval_splits: test_longer left out"),
        (["--reward_funcs", "a:b", "--eval_splits", "test"], ("test",), None),
        (["--reward_funcs", "a:b", "--eval_splits", "test", "test_longer"], ("test", "test_longer"), None),
        (["--preset", "paper-qwen2-7b"], ("test", "test_longer"), None),
        (["--eval_splits", "dev"], ("dev",), None),
    ],
)
@pytest.mark.parametrize("is_saved", [False, True])
def test_default_splits_that_are_missing_are_left_out_and_named_ones_stay(flags, remaining, words, is_saved, tmp_path):
    dataset = write_rows(tmp_path / "data", train=CHATS, test=CHATS)
    if is_saved:
        datasets = pytest.importorskip("datasets")
        splits = {"train": datasets.Dataset.from_list(CHATS), "test": datasets.Dataset.from_list(CHATS)}
        dataset = str(tmp_path / "saved")
        datasets.DatasetDict(splits).save_to_disk(dataset)
    config, line = sft.fit_to_data(parse_cli(SFTConfig, "sft", ["--dataset", dataset, *flags]))
    assert config.data.eval_splits == remaining
    assert line is None if words is None else words in line


@pytest.mark.parametrize("rows", [[], [{"text": "on a"}], [{"prompt": ["on"], "completion": "stack"}]])
def test_a_default_split_that_cannot_be_read_is_left_out_and_a_named_one_is_refused(chats, tmp_path, rows):
    dataset = write_rows(tmp_path / "data", train=CHATS, test=rows)
    config, line = sft.fit_to_data(replace(SFTConfig(), dataset=dataset))
    assert config.data.eval_splits == () and "eval_splits: test left out: " in line
    with pytest.raises(DataError, match="test"):
        sft.sft(replace(chat_config(chats, tmp_path / "run"), dataset=dataset, reward_funcs=("plan",)))


@pytest.mark.parametrize(
    ("changes", "length", "said"),
    [
        (
            {},
            16,
            "2 of 6 rows are longer than the 16 tokens that this gpt2 model was made for (max_position_embeddings",
        ),
        ({"model_max_length": 12}, 12, "the 12 tokens that this gpt2 model was made for (model_max_length"),
        ({"max_length": 14}, 14, "2 of 6 rows are longer than max_length 14 tokens: 1 cut, 1 left out"),
        # Without one that is too long nothing is cut, and nothing is said.
        ({"rows": 4}, 5, None),
    ],
)
def test_rows_longer_than_the_model_was_made_for_are_cut_unless_max_length_says_otherwise(changes, length, said):
    tokenizer = chat_tokenizer(template=None)
    tokenizer.model_max_length = changes.get("model_max_length", 10**30)
    rows = [{"id": i, "prompt": "on b", "completion": "stack"} for i in range(4)]
    rows += [
        {"id": 4, "prompt": "on b", "completion": "stack a " * 9},
        {"id": 5, "prompt": "on " * 20, "completion": "a"},
    ]
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = replace(SFTConfig(), max_length=changes.get("max_length"))
    lines = []
    supervised, _ = sft._fixed_rows(
        config,
        rows[: changes.get("rows")],
        GPT2Config(vocab_size=24, **sizes, max_position_embeddings=16),
        data.make_chat_template(tokenizer),
        SimpleNamespace(warn=lines.append),
    )
    assert supervised.longest == length
    assert len(lines) == (said is not None) and all(said in line for line in lines)


def test_held_out_rows_that_cannot_be_measured_do_not_end_a_run(chats, tmp_path, capsys):
    """One is longer than the model and would be cut for it, of the other splits one has a prompt that is too long."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = GPT2Config(vocab_size=24, **sizes, max_position_embeddings=16)
    hf.save_pretrained(tmp_path / "model", config, random_params(config), chat_tokenizer(template=None))
    short, long = {"prompt": "on b", "completion": "stack a"}, {"prompt": "on b", "completion": "stack a " * 20}
    dataset = write_rows(
        tmp_path / "data", train=[short] * 4, test=[short, long], other=[{"prompt": "on " * 9, "completion": "stack"}]
    )
    changes = {"max_length": 40, "eval_splits": ("test", "other"), "max_prompt_length": 4, "eval_steps": 2}
    options = {"model_path": str(tmp_path / "model"), "dataset": dataset, "reward_funcs": ("plan",), "quiet": False}
    options |= {"report_to": ("none",)}
    folder = sft.sft(replace(chat_config(chats, tmp_path / "run"), **options, **changes))
    assert json.loads((folder / "eval.json").read_text())["test"]["loss"] > 0
    printed = capsys.readouterr().out
    assert "1 of 2 rows longer than 16 tokens: 1 cut, 0 left out" in printed
    assert "test: loss " in printed


@pytest.mark.parametrize("reward_funcs", [("tests.reward_servers:length",), ("plan",)], ids=["reward", "loss alone"])
def test_a_loss_that_is_no_number_is_said_and_written_nowhere(chats, tmp_path, capsys, monkeypatch, reward_funcs):
    """By the loss alone the best checkpoint is chosen, too; then there is none."""
    monkeypatch.setattr(ReferenceLoss, "_loss", lambda *_: float("nan"))
    folder = sft.sft(replace(chat_config(chats, tmp_path / "run", eval_steps=2), reward_funcs=reward_funcs))
    assert "warning: the loss of split test is nan" in capsys.readouterr().out
    assert "loss" not in json.loads((folder / "eval.json").read_text())["test"]
    assert [record.get("eval/test/loss", "none") for record in read_metrics(folder / "metrics.jsonl")][1] is None


def test_planning_problems_are_judged_by_the_default_reward(tmp_path):
    row = {"prompt": "on a", "completion": "stack a", "problem_pddl": "(define)"}
    config = replace(SFTConfig(), dataset=write_rows(tmp_path / "data", train=[row], test=[row], test_longer=[row]))
    assert sft.fit_to_data(config) == (config, None)
    with pytest.raises(DataError, match=r"train\.jsonl:1: field 'id'.* among prompt, completion, problem_pddl;"):
        sft.sft(replace(config, model_path=str(tmp_path / "no-such-model"), output_dir=str(tmp_path / "run")))


@pytest.mark.parametrize("reward", [{}, {"reward_funcs": ("tests.reward_servers:length",)}])
def test_a_named_split_that_is_missing_is_refused_before_the_model_is_loaded(chats, tmp_path, reward):
    settings = {"dataset": str(chats / "data"), "eval_splits": ("test", "dev"), "output_dir": str(tmp_path / "run")}
    with pytest.raises(DataError, match=r"dev\.jsonl: .*got test\.jsonl, train\.jsonl"):
        sft.sft(replace(SFTConfig(), model_path=str(tmp_path / "no-such-model"), **settings, **reward))


@pytest.mark.full
def test_a_run_with_adapters_is_read_by_peft_and_goes_on_as_it_was_stopped(chats, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    settings = {"use_peft": True, "lora_r": 2, "assistant_only_loss": True, "max_length": 20}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    sft.sft(chat_config(chats, whole, **settings))
    batch = data.SupervisedData.batch

    def stop(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(data.SupervisedData, "batch", stop)
        sft.sft(chat_config(chats, stopped, **settings))
    assert not (stopped / "adapters").exists()
    sft.sft(chat_config(chats, stopped, resume=True, **settings))
    for name in ("policy/model.safetensors", "adapters/policy/adapter_model.safetensors"):
        assert_equal_trees(load_file(whole / name), load_file(stopped / name))

    config, merged = hf.load_pretrained(whole / "policy")
    _, base = hf.load_pretrained(chats / "model")
    shape, adapter = hf.peft.load_adapter(whole / "adapters" / "policy", config, base)
    ids = np.array([[2, 4, 8, 9, 10, 6], [2, 4, 9, 10, 6, 5]])
    plain = transformers.AutoModelForCausalLM.from_pretrained(chats / "model")
    theirs = peft.PeftModel.from_pretrained(plain, whole / "adapters" / "policy").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    for params in (lora.attach(base, adapter, shape.scale), merged):
        logits = np.asarray(models.apply(config, params, jnp.asarray(ids)).logits)
        np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)
    assert np.abs(logits - np.asarray(models.apply(config, base, jnp.asarray(ids)).logits)).max() > 1e-2
    params, meta, step = Checkpoints(whole / "checkpoints", 1).restore_params(None, None)
    assert step == 4 and meta["models"]["adapter"]["r"] == 2
    assert {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(params)} == {"lora_a", "lora_b"}


@pytest.mark.full
def test_training_of_an_adapter_goes_on_also_after_a_stop_and_peft_reads_it(chats, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    first, more, stopped = tmp_path / "first", tmp_path / "more", tmp_path / "stopped"
    sft.sft(chat_config(chats, first, use_peft=True, lora_r=2))
    path = first / "adapters" / "policy"
    # The flags of the command, as no other setting says it.
    flags = ["--model_path", str(chats / "model"), "--use_peft", "--lora_path", str(path)]
    settings = {"use_peft": True, "lora_path": parse_cli(SFTConfig, "sft", flags).peft.lora_path}
    # Too small a rate to change the adapter: what is written is what was read.
    sft.sft(replace(chat_config(chats, tmp_path / "same", **settings), learning_rate=1e-30))
    file = "adapters/policy/adapter_model.safetensors"
    assert_equal_trees(load_file(first / file), load_file(tmp_path / "same" / file))
    sft.sft(chat_config(chats, more, **settings))
    batch = data.SupervisedData.batch

    def stop(self, step):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, step)

    with monkeypatch.context() as patch, pytest.raises(Preempted):
        patch.setattr(data.SupervisedData, "batch", stop)
        sft.sft(chat_config(chats, stopped, **settings))
    sft.sft(chat_config(chats, stopped, resume=True, **settings))
    assert_equal_trees(load_file(more / file), load_file(stopped / file))
    before, after = load_file(first / file), load_file(more / file)
    assert max(np.abs(after[name] - before[name]).max() for name in after) > 1e-4

    export(ExportConfig(run_dir=str(more), output_dir=str(tmp_path / "export")))
    config, merged = hf.load_pretrained(tmp_path / "export" / "policy")
    ids = np.array([[2, 4, 8, 9, 10, 6], [2, 4, 9, 10, 6, 5]])
    plain = transformers.AutoModelForCausalLM.from_pretrained(chats / "model")
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "export" / "adapters" / "policy").eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    logits = np.asarray(models.apply(config, merged, jnp.asarray(ids)).logits)
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)


def test_settings_of_what_is_learned_that_do_not_go_together_are_refused():
    for name, settings in {
        "model_path": {"use_peft": True},
        "overlong": {"overlong": "drop"},
        "max_length": {"max_length": 8, "augment": "names"},
        "n_shots": {"assistant_only_loss": True, "n_shots": 2},
        "use_chat_template": {"assistant_only_loss": True, "use_chat_template": False},
    }.items():
        with pytest.raises(ConfigError, match=f"^{name}: "):
            replace(SFTConfig(), **settings)


def test_turns_of_the_assistant_need_a_chat_template(chats, tmp_path):
    folder = tmp_path / "plain"
    shutil.copytree(chats / "model", folder)
    (folder / "chat_template.jinja").unlink()
    rows = [{"prompt": "on a", "completion": "stack a"}]
    dataset = write_rows(tmp_path / "rows", train=rows, test=rows)
    changes = {"model_path": str(folder), "dataset": dataset, "assistant_only_loss": True, "dry_run": True}
    with pytest.raises(ConfigError, match=r"^assistant_only_loss: "):
        sft.sft(replace(chat_config(chats, tmp_path / "run"), **changes))
