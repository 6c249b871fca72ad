"""The rows and the tokenizer that the tests of this folder share."""

import pytest

from jaxppo import data
from jaxppo.planning.datasets import rows as datasets


@pytest.fixture(scope="package")
def tokenizer():
    return data.word_tokenizer()


@pytest.fixture(scope="package")
def rows():
    """Ten rows whose prompts and plans have different lengths."""
    return datasets.build_split("train", sizes={3: 5, 4: 5}, seed=0, unique=True)
