"""Secrets out, everything else untouched: shapes and names by hand, secrets at random places by hypothesis."""

import json
import shlex
import string
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.config.redact import REDACTED, redact, redact_command

ALNUM = string.ascii_letters + string.digits


def text_of(alphabet, length):
    return st.text(alphabet, min_size=length, max_size=length)


def token(prefix, length, alphabet=ALNUM):
    return text_of(alphabet, length).map(prefix.__add__)


# Known by their shape, wherever they stand.
SHAPES = {
    "hugging face": token("hf_", 34, string.ascii_letters),
    "openai": token("sk-", 48),
    "openai project": token("sk-proj-", 60, ALNUM + "-_"),
    "anthropic": token("sk-ant-api03-", 40, ALNUM + "-_"),
    "github": st.sampled_from(["ghp_", "gho_", "ghs_"]).flatmap(lambda prefix: token(prefix, 36)),
    "github fine-grained": token("github_pat_", 82, ALNUM + "_"),
}
SHAPED = st.one_of(*SHAPES.values())

# Known by the name before them only: passwords, and wandb's 40 hexadecimal digits.
OPAQUE = st.one_of(text_of("0123456789abcdef", 40), st.text(ALNUM + "!%+,./:;=?@~-", min_size=8).map("p4".__add__))
SECRET_NAMES = [
    "token", "auth_token", "access_token", "hf_token", "HF_TOKEN", "hub_token", "push_to_hub_token", "accessToken",
    "api_key", "apikey", "api-key", "x-api-key", "WANDB_API_KEY", "openai_api_key", "secret", "client_secret",
    "aws_secret_access_key", "private_key", "password", "passwd", "db_password", "password2", "credential",
    "credentials", "authorization", "Authorization", "tracking.api_key", "run.token", "use_auth_token",
]  # fmt: skip
ORDINARY_NAMES = [
    "bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token", "stop_token",
    "bos_token_id", "eos_token_id", "pad_token_id", "stop_token_id", "decoder_start_token_id", "special_tokens",
    "additional_special_tokens", "added_tokens_decoder", "max_new_tokens", "num_tokens", "max_tokens", "tokens",
    "tokenizer", "tokenizer_class", "tokenizer_name", "add_bos_token", "image_token", "suppress_tokens", "keys",
    "key", "keyword", "author", "authors", "secretary", "passes", "model_path", "dataset", "val/num_eos_tokens",
]  # fmt: skip


@pytest.mark.parametrize("kind", SHAPES)
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_redact_finds_a_token_by_its_shape_in_any_text(kind, data):
    secret = data.draw(SHAPES[kind])
    assert redact(secret) == REDACTED
    assert redact(f"log in with {secret}, then go on") == f"log in with {REDACTED}, then go on"
    for before, after in [("/models/", "/x"), ("(", ")"), ('{"a": "', '"}'), ("a\\n", " b"), ("x%3D", "&y"), ("_", "")]:
        assert secret not in redact(before + secret + after)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_redact_hides_what_is_a_secret_under_a_secret_name(name):
    assert redact({name: "s3cr3t value"}) == {name: REDACTED}
    assert redact({"a": [{name: ["one", {"b": "two"}]}]}) == {"a": [{name: [REDACTED, {"b": REDACTED}]}]}
    for text in (f"{name}=s3cr3t", f"x {name} = s3cr3t y", f"{name}: s3cr3t", f'{{"{name}": "s3cr3t"}}'):
        assert redact(text) == text.replace("s3cr3t", REDACTED)
    for text in (f"--{name} s3cr3t --seed 1", f"--{name}=s3cr3t --seed 1", f"--{name} 's3cr3t' x"):
        assert redact(text) == text.replace("s3cr3t", REDACTED)
    assert redact([f"--{name}", "s3 cr3t", "--seed", "1"]) == [f"--{name}", REDACTED, "--seed", "1"]
    assert redact([f"--{name}=s3 cr3t", f"{name}=s3'cr3t"]) == [f"--{name}={REDACTED}", f"{name}={REDACTED}"]

    # What is no secret stays under such a name.
    kept = {name: None, "a": {name: True}, "b": {name: ""}, "c": {name: 7}, "d": {name: "None"}}
    assert redact(kept) == kept
    for text in (f"{name}=None", f"{name}: null", f"--{name} --seed 1", f'"{name}": 17, "x": 1', f'"{name}": []'):
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


def test_redact_hides_only_what_looks_random_under_a_name_that_may_mean_anything():
    random, ordinary = "9f8a7b6c5d4e3f2a1b0c9d8e", "<|assistant_turn_begins|>"
    for value, shown in ((random, REDACTED), (ordinary, ordinary)):
        assert redact({"my_token": value}) == {"my_token": shown}
        assert redact(f"MY_TOKEN={value} x") == f"MY_TOKEN={shown} x"
        assert redact(["--my_token", value]) == ["--my_token", shown]
    # Keys of wandb are taken after a name alone.
    key = "0123456789abcdef0123456789abcdef01234567"
    assert redact(f"commit {key}") == f"commit {key}"
    assert redact({"commit": key, "revision": key}) == {"commit": key, "revision": key}
    assert redact({"wandb_api_key": key, "api_key": key}) == {"wandb_api_key": REDACTED, "api_key": REDACTED}
    assert redact(f"machine api.wandb.ai login user password {key}").endswith(f"password {REDACTED}")


SECRET_TEXTS = {
    "https://user:pass/w@rd@host/x": f"https://{REDACTED}@host/x",
    "https://mytoken@host": f"https://{REDACTED}@host",
    "git+https://u:p@github.com/a/b@v1": f"git+https://{REDACTED}@github.com/a/b@v1",
    "HTTPS://u:p@h, http://u:q@h": f"HTTPS://{REDACTED}@h, http://{REDACTED}@h",
    "https://h/x?a=1&token=abc&b=2#c": f"https://h/x?a=1&token={REDACTED}&b=2#c",
    "https://h/x?X-Amz-Signature=ab&y": f"https://h/x?X-Amz-Signature={REDACTED}&y",
    "Authorization: Bearer abc": f"Authorization: Bearer {REDACTED}",
    "-H 'authorization: Basic dXNlcjpw' x": f"-H 'authorization: Basic {REDACTED}' x",
    "Bearer abc.def-1/2=": f"Bearer {REDACTED}",
    '{"password": "a\\"b", "x": 1}': f'{{"password": "{REDACTED}", "x": 1}}',
    '"{\\"api_key\\": \\"abc\\"}"': f'"{{\\"api_key\\": \\"{REDACTED}\\"}}"',
    "['--api_key', 'X', '--seed']": f"['--api_key', '{REDACTED}', '--seed']",
    "f(token=abc, x=1)": f"f(token={REDACTED}, x=1)",
    "password='a b' c": f"password='{REDACTED}' c",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx": f"{REDACTED}\nx",
}
ORDINARY_TEXTS = [
    "https://h:8080/models/x@main",
    "http://[::1]:8080/x@y",
    "ssh://git@github.com/a/b",
    "git@github.com:a/b.git",
    "hf://datasets/user/name@main",
    "https://h/x?max_tokens=5&q=a@b",
    "the bearer of this letter",
    "credentials:\n  user: x",
    "reward of each token: its score",
    "rlhf_blocksworldcheckpoint risk-averseandverylongname shelf_abcdefghijklmnopqrst",
    "no secret here, and no password",
]


@pytest.mark.parametrize(
    ("text", "expected"), [*SECRET_TEXTS.items(), *zip(ORDINARY_TEXTS, ORDINARY_TEXTS, strict=True)]
)
def test_redact_of_text_takes_secrets_out_and_nothing_else(text, expected):
    assert redact(text) == expected


class Pair(NamedTuple):
    path: str
    token: str


def test_redact_keeps_types_and_does_not_touch_its_argument():
    secret = "hf_" + "a" * 34
    given_value = {"a": (1, secret), 2: [None, 1.5, True, b"x"], secret: Pair("p", secret)}
    before = repr(given_value)
    assert redact(given_value) == {"a": (1, REDACTED), 2: [None, 1.5, True, b"x"], REDACTED: Pair("p", REDACTED)}
    assert type(redact(given_value)[REDACTED]) is Pair
    assert repr(given_value) == before
    assert redact({"password": 123456, "token": 50256, "label2id": {"B-secret": 17}}) == {
        "password": REDACTED,
        "token": 50256,  # the id of a token
        "label2id": {"B-secret": 17},
    }


JSON_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["</s>", "gelu"])


def hide_somewhere(draw, secret, opaque):
    """Nested dictionaries and lists around a secret; what only a name gives away stands under a secret name."""
    if opaque:
        node = {draw(st.sampled_from(SECRET_NAMES)): secret}
    else:
        around = draw(st.sampled_from([("", ""), ("a/", "/b"), ("use ", " now"), ("x=", ";"), ("https://h/?q=", "&z")]))
        node = around[0] + secret + around[1]
    for _ in range(draw(st.integers(0, 4))):
        beside = draw(JSON_LEAVES)
        kind = draw(st.sampled_from(["dict", "list", "tuple", "key"]))
        if kind == "dict" or (kind == "key" and not isinstance(node, str)):
            node = {"beside": beside, draw(st.sampled_from(ORDINARY_NAMES)): node}
        elif kind == "key":
            node = {node: beside}
        else:
            node = [beside, node] if kind == "list" else (node, beside)
    return node


@st.composite
def hidden_secrets(draw):
    """(secret, nested configuration that holds it)."""
    opaque = draw(st.booleans())
    secret = draw(OPAQUE if opaque else SHAPED)
    return secret, hide_somewhere(draw, secret, opaque)


@given(hidden_secrets())
@settings(max_examples=100, deadline=None)
def test_redact_finds_a_secret_at_any_place_and_changes_nothing_the_second_time(hidden):
    secret, value = hidden
    assert secret in str(value)
    assert secret not in str(redact(value))
    assert redact(redact(value)) == redact(value)


ONE_VALUE = st.sampled_from([name for name in SECRET_NAMES if not name.endswith("s")])


@given(ONE_VALUE, OPAQUE, st.booleans(), st.lists(st.sampled_from(["--seed", "1", "-v", "x y"])))
@settings(max_examples=50, deadline=None)
def test_redact_command_takes_the_secret_of_a_flag_out(name, secret, equals, others):
    flag = [f"--{name}={secret}"] if equals else [f"--{name}", secret]
    command = redact_command(["prog", *others, *flag, *others])
    kept = ["prog", *others, *([f"--{name}={REDACTED}"] if equals else [f"--{name}", REDACTED]), *others]
    assert shlex.split(command) == kept
    assert redact(command) == command


def test_redact_command_hides_every_value_of_a_flag_for_several():
    command = redact_command(["prog", "--api_keys", "a", "b", "--use_auth_token", "--stop_token", "eos"])
    assert shlex.split(command) == ["prog", "--api_keys", REDACTED, REDACTED, "--use_auth_token", "--stop_token", "eos"]
