"""The public entry points of the planning room."""

import subprocess
import sys

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning import PlanError, validate_actions, validate_plan
from jaxppo.planning.language.plans import parse_plan_text
from tests.planning.validate.test_validator import DOMAIN, PROBLEM, SOLUTION, VALID, refused


@pytest.mark.parametrize("validator", ["builtin", "auto"])
def test_validate_plan_and_actions_agree(validator):
    assert validate_plan(DOMAIN, PROBLEM, SOLUTION.upper(), validator=validator) == VALID
    assert validate_actions(DOMAIN, PROBLEM, parse_plan_text(SOLUTION).actions, validator=validator) == VALID


def test_validate_plan_refuses_text_that_is_not_a_plan():
    assert validate_plan(DOMAIN, PROBLEM, f"{SOLUTION} and so on") == refused(PlanError.SYNTAX, 5)


@pytest.mark.parametrize("text", [SOLUTION, "not a plan"])
def test_unknown_validator_is_an_error(text):
    with pytest.raises(ConfigError, match=r"^validator: expected one of builtin, val, auto, got 'oracle'$"):
        validate_plan(DOMAIN, PROBLEM, text, validator="oracle")
    with pytest.raises(ConfigError):
        validate_actions(DOMAIN, PROBLEM, (), validator="oracle")


def test_planning_imports_no_array_or_model_library():
    code = "import jaxppo.planning, jaxppo.planning.datasets.rows, sys; print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not [name for name in ("jax", "flax", "transformers", "torch", "numpy") if f"'{name}'" in modules]
