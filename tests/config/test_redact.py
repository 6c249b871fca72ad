"""Secrets out, everything else untouched."""

import json
import shlex

import pytest

from jaxppo.config.redact import REDACTED, redact, redact_command

SECRET_NAMES = [
    "token", "auth_token", "access_token", "hf_token", "HF_TOKEN", "push_to_hub_token", "accessToken", "run.token",
    "api_key", "x-api-key", "WANDB_API_KEY", "openai_api_key", "client_secret", "aws_secret_access_key", "private_key",
    "password", "passwd", "db_password", "credentials", "Authorization", "tracking.api_key",
]  # fmt: skip
ORDINARY_NAMES = [
    "bos_token", "eos_token_id", "stop_token", "decoder_start_token_id", "additional_special_tokens", "max_new_tokens",
    "tokenizer_class", "suppress_tokens", "keys", "key", "keyword", "author", "secretary", "val/num_eos_tokens",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_redact_hides_what_is_a_secret_under_a_secret_name(name):
    assert redact({name: "s3cr3t value"}) == {name: REDACTED}
    assert redact({"a": [{name: ["one", {"b": "two"}]}]}) == {"a": [{name: [REDACTED, {"b": REDACTED}]}]}
    for text in (f"{name}=s3cr3t", f"x {name} = s3cr3t y", f'{{"{name}": "s3cr3t"}}', f"f({name}='s3cr3t', x=1)"):
        assert redact(text) == text.replace("s3cr3t", REDACTED)
    for text in (f"--{name} s3cr3t --seed 1", f"--{name}=s3cr3t --seed 1", f"https://h/x?a=1&{name}=s3cr3t&b=2#c"):
        assert redact(text) == text.replace("s3cr3t", REDACTED)
    command = redact_command(["prog", f"--{name}", "s3 cr3t", "second", "--seed", "1", f"--{name}=s3 cr3t"])
    assert shlex.split(command) == ["prog", f"--{name}", REDACTED, REDACTED, "--seed", "1", f"--{name}={REDACTED}"]
    assert redact(command) == command

    # What is no secret stays under such a name.
    kept = {name: None, "a": {name: True}, "b": {name: ""}, "c": {name: 50256}, "d": {name: "None"}}
    assert redact(kept) == kept
    for text in (f"{name}=None", f"--{name} --seed 1", f'"{name}": 17, "x": 1', f'"{name}": []'):
        assert redact(text) == text


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_redact_leaves_the_tokens_of_language_models_alone(name):
    for value in ("</s>", "[PAD]", 50256, ["a", "b"], {"0": "x"}, "EleutherAI/x"):
        ordinary = {name: value, "nested": [{name: value}]}
        assert redact(ordinary) == ordinary
        assert redact(json.dumps(ordinary)) == json.dumps(ordinary)
        words = [f"--{name}", str(value), f"--{name}={value}", f"{name}={value}"]
        assert redact(words) == words
        assert redact(shlex.join(words)) == shlex.join(words)


HUB_TOKEN = "hf_" + "a1B2c3D4" * 4
SECRET_TEXTS = {
    f"log in with {HUB_TOKEN}, then": f"log in with {REDACTED}, then",
    f"a\\n{HUB_TOKEN}/x": f"a\\n{REDACTED}/x",
    "https://user:pa:ss@host/x": f"https://{REDACTED}@host/x",
    "https://mytoken@host": f"https://{REDACTED}@host",
    "git+https://u:p@github.com/a/b@v1": f"git+https://{REDACTED}@github.com/a/b@v1",
    "HTTPS://u:p@h, http://u:q@h": f"HTTPS://{REDACTED}@h, http://{REDACTED}@h",
    "postgres://u:p@h/x": f"postgres://{REDACTED}@h/x",
    "https://h/x?X-Amz-Signature=ab&y": f"https://h/x?X-Amz-Signature={REDACTED}&y",
    "-H 'authorization: Basic dXNlcjpw' x": f"-H 'authorization: Basic {REDACTED}' x",
    '{"password": "a\\"b", "x": 1}': f'{{"password": "{REDACTED}", "x": 1}}',
    "password='a b' c": f"password='{REDACTED}' c",
    "['--api_key', 'X', '--seed']": f"['--api_key', '{REDACTED}', '--seed']",
    "wandb_key=a session_token=b pwd=c": f"wandb_key={REDACTED} session_token={REDACTED} pwd={REDACTED}",
    "sent Bearer 0123456789abcdef.x": f"sent Bearer {REDACTED}",
}
ORDINARY_TEXTS = [
    "https://h:8080/models/x@main http://[::1]:8080/x@y",
    "ssh://git@github.com/a/b",
    "hf://datasets/user/name@main",
    "https://h/x?max_tokens=5&q=a@b",
    "the bearer of this letter",
    "credentials:\n  user: x",
    "reward of each token: its score",
    "no secret here, and no password",
]


@pytest.mark.parametrize(("text", "expected"), (SECRET_TEXTS | {text: text for text in ORDINARY_TEXTS}).items())
def test_redact_of_text_takes_secrets_out_and_nothing_else(text, expected):
    assert redact(text) == redact(expected) == expected


def test_redact_keeps_types_and_does_not_touch_its_argument():
    given_value = {"a": (1, HUB_TOKEN), 2: [None, 1.5, True, b"x"], HUB_TOKEN: ("p", HUB_TOKEN)}
    before = repr(given_value)
    assert redact(given_value) == {"a": (1, REDACTED), 2: [None, 1.5, True, b"x"], REDACTED: ("p", REDACTED)}
    assert repr(given_value) == before
    assert redact({"token": 50256, "label2id": {"B-secret": 17}}) == {"token": 50256, "label2id": {"B-secret": 17}}
