"""Which files of a folder are found."""

import pytest

from jaxppo.errors import DataError
from jaxppo.planning.answers.reading import read_answers
from jaxppo.planning.importing.pddl_folder import PddlFolder
from tests.planning.import_samples import LAMPS, lamp_plan, lamp_problem, lines, write_files


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    inside = {"domain.pddl": LAMPS, "p1.pddl": lamp_problem(3, 1), "real/p2.pddl": lamp_problem(3, 2)}
    root = write_files(tmp_path / "pddl", inside)
    secret = write_files(tmp_path / "other", {"p3.pddl": lamp_problem(4, 1), "p1.plan": lines(lamp_plan(1))})
    (root / "p3.pddl").symlink_to(secret / "p3.pddl")
    (root / "p1.plan").symlink_to(secret / "p1.plan")
    (root / "plans").symlink_to(secret)
    (root / "p4.pddl").symlink_to(root / "real" / "p2.pddl")  # this one stays in the folder
    folder = PddlFolder(root)
    assert [folder.label(path) for path in folder.files] == ["domain.pddl", "p1.pddl", "p4.pddl", "real/p2.pddl"]
    assert folder.plans_of(folder.definition(root / "p1.pddl")) == []
    (tmp_path / "link").symlink_to(root)  # a folder may itself be named by a link
    assert len(PddlFolder(tmp_path / "link").files) == 4


def test_a_folder_without_files_that_are_read_says_which_would_be(tmp_path):
    source = write_files(tmp_path, {"model/p1.txt": "(a)", "model/p2.txt": "(b)"})
    with pytest.raises(DataError, match=r"plans: .*\.jsonl.*\.plan.* 2 with \.txt"):
        list(read_answers(source, {}, [], []))
