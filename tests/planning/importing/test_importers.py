import json
from collections import Counter

import pyarrow
import pyarrow.parquet
import pytest

from jaxppo.errors import ConfigError, DataError
from jaxppo.planning.__main__ import run
from jaxppo.planning.datasets.build import build_dataset
from jaxppo.planning.datasets.config import BuildConfig, ImportConfig, PlannerConfig
from jaxppo.planning.datasets.files import read_jsonl
from jaxppo.planning.datasets.folder import kind_of_reason
from jaxppo.planning.datasets.renamed_rows import pools_of
from jaxppo.planning.datasets.rows import partition
from jaxppo.planning.importing.importers import import_problems
from jaxppo.planning.language.parse import parse_domain, parse_problem
from jaxppo.run.console import Console
from tests.planning import kiln
from tests.planning.dataset_rows import problem_of
from tests.planning.import_samples import (
    LAMPS,
    NO_PLANNER,
    PIPES,
    import_into,
    json_lines,
    lamp_files,
    lamp_plan,
    lamp_problem,
    lines,
    paper_row,
    pipe_plan,
    pipe_problem,
    planbench_json,
    rejections,
    write_files,
)

BUILTIN = PlannerConfig(planner="builtin", workers=1, planner_timeout_s=20)
GOOD = lamp_files({"p": (3, 1)}, "good/")


def import_with_pddl(tmp_path, files, pddl, **settings):
    source, pddl_dir = write_files(tmp_path / "in", files), write_files(tmp_path / "pddl", pddl)
    return import_into(tmp_path / "out", source, pddl_dir=str(pddl_dir), **settings)


def assert_rejected(rejected, expected):
    """Every reason is of its kind, and names what it should: {source: (kind, what it names)}."""
    assert {source: kind_of_reason(reason) for source, reason in rejected.items()} == {
        source: kind for source, (kind, _) in expected.items()
    }
    for source, (_, named) in expected.items():
        assert named in rejected[source]


def plans_of(rows):
    return {name: row["reference_plan"] for name, row in rows.items()}


def test_copies_take_no_ids_and_an_import_without_train_has_none(tmp_path):
    names = {f"p{suffix}": goal for suffix, goal in (("", 1), ("-1", 2), ("-2", 3))}
    source = write_files(tmp_path / "source", lamp_files({name: (4, goal) for name, goal in names.items()}, "lamps/"))
    rows, rejected, _ = import_into(tmp_path / "train", source, split="train", n_renamings=2)
    assert not rejected
    assert {f"lamps/{name}": lamp_plan(goal) for name, goal in names.items()}.items() <= plans_of(rows).items()
    copies = rows.keys() - {f"lamps/{name}" for name in names}
    assert copies == {f"lamps/p-{n}-{m}" for n in (1, 2) for m in (1, 2)}
    for name in copies:
        original, problem = rows[rows[name]["paired_id"]], problem_of(rows[name])
        assert problem.objects.keys() == {"l0", "l1", "l2", "l3"}  # names of the import
        assert rows[name]["prompt"] != original["prompt"]
    _, _, report = import_into(tmp_path / "test", source, split="test", n_renamings=2)
    assert "train" not in report["splits"]
    broken = write_files(tmp_path / "broken", {"lamps/domain.pddl": LAMPS, "lamps/p.pddl": "(define"})
    with pytest.raises(DataError, match="source"):
        import_into(tmp_path / "none", broken, split="train", n_renamings=2)


def test_a_problem_whose_objects_can_have_no_other_names_stays(tmp_path):
    # The only lamp has a word of the domain as its name, which nothing else may get.
    files = {"lamps/domain.pddl": LAMPS, "lamps/p.plan": "(switch-on lamp)\n"}
    files["lamps/p.pddl"] = lamp_problem(1, 0).replace("l0", "lamp")
    source = write_files(tmp_path / "source", files)
    rows, rejected, _ = import_into(tmp_path / "out", source, split="train", n_renamings=3)
    assert plans_of(rows) == {"lamps/p": ["(switch-on lamp)"]}
    assert_rejected(rejected, {"lamps/p.pddl": ("no copies", "pools")})


def test_types_that_share_a_name_share_a_pool():
    action = "(:predicates (p ?x - a)) (:action go :parameters (?x - a) :precondition () :effect (p ?x))"
    domain = parse_domain(f"(define (domain d) (:requirements :typing) (:types a b c) (:constants k - a) {action})")
    texts = ["x1 x2 - a y1 - b z1 - c", "y1 - a x1 - b z2 z3 - c untyped"]
    problems = [
        parse_problem(f"(define (problem p) (:domain d) (:objects {text}) (:init) (:goal (and)))", domain)
        for text in texts
    ]
    assert pools_of(problems) == {"a": ["x1", "x2", "y1"], "b": ["x1", "x2", "y1"], "c": ["z1", "z2", "z3"]}


def lamps_at(problem, plan, goal):
    return {problem: lamp_problem(3, goal), plan: lines(lamp_plan(goal))}


PIPES_APART = {"pipes/domain.pddl": PIPES, "pipes/p.pddl": pipe_problem(3), "pipes/p.pddl.soln": lines(pipe_plan(3))}
LAYOUTS = {
    "a folder for each domain": (
        lamp_files({"instance-2": (3, 1), "instance-10": (3, 2)}, "lamps/") | PIPES_APART,
        ["lamps/instance-2", "lamps/instance-10", "pipes/p"],  # 2 before 10
    ),
    "a domain for each problem": (
        {
            "domain-01.pddl": LAMPS.replace("(lamp ?x) (not (on ?x))", "(lamp ?x)"),
            "p01.pddl": lamp_problem(3, 1),
            "p01.soln": lines(["(switch-on l0)", *lamp_plan(1)]),
            "domain-02.pddl": LAMPS,
            **lamps_at("p02.pddl", "p02.soln", 2),
        },
        ["p01", "p02"],
    ),
    "domains and instances in folders of their own": (
        {
            "domains/domain-1.pddl": LAMPS,
            "domains/domain-2.pddl": LAMPS + "; another",
            **lamps_at("instances/instance-1.pddl", "solutions/instance-1.pddl.1", 1),
            **lamps_at("instances/instance-2.pddl", "solutions/instance-2", 2),
        },
        ["instances/instance-1", "instances/instance-2"],
    ),
    "plans in a mirrored tree": (
        {
            "lamps/domain.pddl": LAMPS,
            **lamps_at("lamps/testing/easy/p01.pddl", "solutions/lamps/testing/easy/p01.plan", 1),
            **lamps_at("lamps/testing/hard/p01.pddl", "solutions/lamps/testing/hard/p01.plan", 2),
        },
        ["lamps/testing/easy/p01", "lamps/testing/hard/p01"],
    ),
    "plans in a tree beside that of the problems": (
        {
            "problems/lamps/domain.pddl": LAMPS,
            **lamps_at("problems/lamps/easy/p01.pddl", "plans/lamps/easy/p01.plan", 1),
            **lamps_at("problems/lamps/hard/p01.pddl", "plans/lamps/hard/p01.plan", 2),
        },
        ["problems/lamps/easy/p01", "problems/lamps/hard/p01"],
    ),
    "distinguished by content, not by name": ({"b.PDDL": LAMPS, **lamps_at("a.pddl", "a.plan", 1)}, ["a"]),
    "a problem that calls its domain otherwise": (
        {"domain.pddl": LAMPS, "p.pddl": lamp_problem(3, 1, domain="lamps-2"), "p.plan": lines(lamp_plan(1))},
        ["p"],
    ),
    "a domain of the right name further up": (
        {"domain.pddl": LAMPS, "x/domain.pddl": PIPES, **lamps_at("x/p.pddl", "x/p.plan", 1)},
        ["x/p"],
    ),
}


@pytest.mark.parametrize(("files", "found"), LAYOUTS.values(), ids=LAYOUTS)
def test_import_problems_reads_layouts(files, found, tmp_path):
    """A plan of another problem would be rejected: those of different problems are different."""
    rows, rejected, _ = import_into(tmp_path / "out", write_files(tmp_path / "in", files))
    assert list(rows) == found
    assert rejected == {}


@pytest.mark.parametrize(
    "files",
    [
        {"p.plan": "; found in 0.1 s\n(SWITCH-ON L0)\r\n(Pass l0 l1)\r\n; cost = 2 (unit cost)"},
        {"p.plan": "0.002: (pass l0 l1) [1.000]\n0.001: (switch-on l0) [1.000]\n"},
        {"sas_plan": "(switch-on l0)", "sas_plan.1": "junk", "sas_plan.2": lines(lamp_plan(1))},
        {"p.plan.9": "junk", "p.plan.10": lines(lamp_plan(1)), "sas_plan": "junk"},
        {"p.pddl.sol": lines(lamp_plan(1)), "plans/p.plan": "junk"},
        {"plans/p.pddl": lines(lamp_plan(1)), "plans/p2.plan": "junk", "plans/pp": "junk"},
        {"p.plan": b"\xef\xbb\xbf(switch-on l0)\n(pass l0 l1)\n"},
    ],
)
def test_import_problems_reads_plan_files(files, tmp_path):
    source = write_files(tmp_path / "in", {"domain.pddl": LAMPS, "p.pddl": lamp_problem(3, 1), **files})
    rows, rejected, _ = import_into(tmp_path / "out", source)
    assert (plans_of(rows), rejected) == ({"p": lamp_plan(1)}, {})


def test_import_problems_makes_rows_of_texts_and_plans(tmp_path):
    files = lamp_files({"p": (3, 2), "q": (3, 1), "r": (4, 1)})
    comment = lamp_problem(4, 1) + "; (a comment)"
    files |= {"domain.pddl": LAMPS.replace("\n", "\r\n"), "q.pddl": lamp_problem(3, 1) + ")\n)", "r.pddl": comment}
    rows, rejected, report = import_into(tmp_path / "out", write_files(tmp_path / "in", files))
    row = rows["p"]
    assert row["domain_pddl"] == LAMPS
    # Spare parentheses after a problem are dropped.
    assert [row["problem_pddl"] for row in rows.values()] == [lamp_problem(3, 2), lamp_problem(3, 1), comment]
    assert row["prompt"] == "<init> lamp l0 ; next l0 l1 ; next l1 l2 <goal> on l2 <plan>"
    assert row["completion"] == "switch-on l0 ; pass l0 l1 ; pass l1 l2"
    assert (row["domain"], row["split"], row["planner"], row["source"]) == ("lamps", "test", "given", "p.pddl")
    assert (row["plan_length"], row["n_objects"]) == (3, 3)
    assert report["plans"] == {"given": 3, "found": 0, "not found": 0} and rejected == {}


ONE, TWO = lamp_problem(4, 1), lamp_problem(4, 2)
CONSTRAINED = LAMPS.replace("(:predicates", "(:constraints) (:predicates")


@pytest.mark.parametrize(
    ("files", "kind", "named"),
    [
        ({"p.pddl": b"\xff\xfe("}, "unreadable", "p.pddl"),
        ({"p.pddl": pipe_problem(3)}, "no domain", "pipes"),
        ({"a.pddl": LAMPS, "b.pddl": LAMPS + "; b", "p.pddl": ONE}, "no domain", "bad/a.pddl, bad/b.pddl"),
        ({"domain.pddl": LAMPS, "p.pddl": ONE.replace("(on l1)", "(off l1)")}, "unreadable", "(off l1)"),
        ({"domain.pddl": LAMPS, "p.pddl": ONE.rstrip()[:-1]}, "unreadable", "line 1"),
        ({"domain.pddl": LAMPS, "p.pddl": ONE.rstrip()[:-1]}, "unreadable", "unreadable: bad/p.pddl:"),
        ({"domain.pddl": LAMPS.rstrip()[:-1], "p.pddl": ONE}, "unreadable", "unreadable: bad/domain.pddl:"),
        ({"domain.pddl": CONSTRAINED, "p.pddl": ONE}, "unsupported", ":constraints"),
        ({"domain.pddl": kiln.DOMAIN, "p.pddl": kiln.PROBLEM, "p.plan": kiln.PLAN}, "temporal", ""),
        ({"domain.pddl": LAMPS, "p.pddl": ONE.replace("(:init", "(:init (at 5 (on l1))")}, "temporal", ""),
        ({"domain.pddl": LAMPS, "p.pddl": ONE, "p.plan": "(switch-on l0) and more"}, "unreadable plan", "step 2"),
        ({"domain.pddl": LAMPS, "p.pddl": TWO, "p.plan": "(pass l0 l1)"}, "invalid plan", "step 1: precondition"),
        ({"domain.pddl": LAMPS, "p.pddl": TWO}, "no plan", "planner"),
        ({"domain.pddl": LAMPS, "p.pddl": TWO + ";" * 16_000_000}, "unreadable", str(len(TWO) + 16_000_000)),
    ],
)
def test_import_problems_lists_what_is_wrong_and_goes_on(files, kind, named, tmp_path):
    source = write_files(tmp_path / "in", GOOD | {f"bad/{name}": content for name, content in files.items()})
    rows, rejected, report = import_into(tmp_path / "out", source)
    assert list(rows) == ["good/p"]
    assert_rejected(rejected, {"bad/p.pddl": (kind, named)})
    assert report["rejected"] == {kind: 1}


def test_import_problems_leaves_duplicates_out_once_for_each_domain(tmp_path):
    renamed = lamp_problem(3, 1).replace("l0", "a").replace("l1", "b").replace("l2", "c")
    files = lamp_files({"p1": (3, 1), "p2": (3, 1), "p3": (3, 2)}, "lamps/")
    files |= {"lamps/p2.pddl": renamed, "lamps/p2.plan": "(switch-on a)(pass a b)"}
    for folder in ("again", "other", "stay"):
        files |= lamp_files({"p1": (3, 1)}, f"{folder}/")
    files["again/domain.pddl"] = "; the first again\n" + LAMPS.upper()
    files["other/domain.pddl"] = LAMPS.replace("(domain lamps)", "(domain lights)")
    files["stay/domain.pddl"] = LAMPS.replace("(not (on ?x)))))", "(on ?x))))")  # of the same name, but lamps stay on
    rows, rejected, report = import_into(tmp_path / "out", write_files(tmp_path / "in", files))
    assert list(rows) == ["again/p1", "lamps/p3", "other/p1", "stay/p1"]
    duplicates = {"lamps/p1.pddl": ("duplicate", "again/p1"), "lamps/p2.pddl": ("duplicate", "again/p1")}
    assert_rejected(rejected, duplicates)
    assert report["rejected"] == {"duplicate": 2}


def test_import_problems_rejects_what_the_prompt_style_cannot_write(tmp_path):
    files = lamp_files({"p": (3, 1), "q": (3, 1)})
    files["q.pddl"] = files["q.pddl"].replace("(:goal (on l1))", "(:goal (or (on l1) (on l2)))")
    source = write_files(tmp_path / "in", files)
    rows, rejected, _ = import_into(tmp_path / "atoms", source)
    assert list(rows) == ["p"]
    assert_rejected(rejected, {"q.pddl": ("prompt style", "(or (on l1) (on l2))")})
    rows, rejected, _ = import_into(tmp_path / "pddl", source, prompt_style="pddl")
    assert (list(rows), rejected) == (["p", "q"], {})
    del files["p.pddl"]
    with pytest.raises(DataError, match=r"^source: .*prompt style"):
        import_into(tmp_path / "none", write_files(tmp_path / "without p", files))


def test_import_problems_finds_missing_plans_and_goes_on_from_the_cache(tmp_path):
    unsolvable = lamp_problem(3, 1).replace("(lamp l0)", "(next l2 l0)")
    files = lamp_files({"p1": (3, 1)}) | {"p2.pddl": lamp_problem(3, 2), "p3.pddl": unsolvable}
    source, out = write_files(tmp_path / "in", files), tmp_path / "out"
    rows, rejected, report = import_into(out, source, planners=BUILTIN)
    assert plans_of(rows) == {"p1": lamp_plan(1), "p2": lamp_plan(2)}
    assert [rows[name]["planner"].split()[0] for name in ("p1", "p2")] == ["given", "builtin"]
    assert_rejected(rejected, {"p3.pddl": ("unsolvable", "")})
    assert report["plans"] == {"given": 1, "found": 1, "not found": 1}
    first, planned = (out / "test.jsonl").read_bytes(), (out / "plans.jsonl").read_text()
    assert len(planned.splitlines()) == 2
    (out / "report.json").unlink()
    import_into(out, source, planners=BUILTIN)
    assert (out / "test.jsonl").read_bytes() == first
    assert (out / "plans.jsonl").read_text() == planned  # nothing was solved again


def test_import_problems_replaces_invalid_plans_where_asked(tmp_path):
    files = lamp_files({"p1": (3, 1), "p2": (3, 2)}) | {"p1.plan": "(pass l0 l1)", "p2.plan": "no plan"}
    source = write_files(tmp_path / "in", files)
    rows, rejected, _ = import_into(tmp_path / "out", source, planners=BUILTIN, replace_invalid_plans=True)
    assert plans_of(rows) == {"p1": lamp_plan(1), "p2": lamp_plan(2)}
    assert rejected == {}
    with pytest.raises(DataError, match=r"source.*2 rejected: p1\.pddl: invalid plan at step 1"):
        import_into(tmp_path / "none", source)


def test_import_problems_splits_by_length_objects_and_canonical_form(tmp_path):
    cases = {f"p{n}-{goal}": (n, goal) for n in (*range(5, 13), 25) for goal in range(1, min(n, 24))}
    files = lamp_files(cases) | {"x/domain.pddl": PIPES, "x/p.pddl": pipe_problem(3), "x/p.plan": lines(pipe_plan(3))}
    source = write_files(tmp_path / "in", files)
    settings = {"split": "auto", "short_lengths": "2-8", "long_lengths": "10-20", "unseen_domains": ("pipes",)}
    rows, rejected, report = import_into(tmp_path / "out", source, max_train_objects=12, **settings)
    expected = {}
    for name, (n, goal) in cases.items():
        part, length = partition(parse_problem(lamp_problem(n, goal), parse_domain(LAMPS))), goal + 1
        if length in range(2, 9) and n <= 12:
            expected[name] = part
        elif length in (*range(2, 9), *range(10, 21)) and part == "test":
            expected[name] = "test_longer" if n <= 12 else "test_larger"
    assert {name: row["split"] for name, row in rows.items()} == {**expected, "x/p": "test_unseen"}
    assert set(report["splits"]) == {"train", "rl", "test", "test_longer", "test_larger", "test_unseen"}
    assert report["leaks"]["leaks"] == 0
    reasons = Counter(report["rejected"])
    assert reasons["plan length"] == sum(goal + 1 not in (*range(2, 9), *range(10, 21)) for _, goal in cases.values())
    assert reasons.total() == len(cases) + 1 - len(rows)
    assert "plan length 9" in rejected["p12-8.pddl"]


def test_import_problems_calls_larger_what_has_more_objects_than_train_rl_and_test(tmp_path):
    def of_test(n: int, goals) -> int:
        return next(g for g in goals if partition(parse_problem(lamp_problem(n, g), parse_domain(LAMPS))) == "test")

    cases = {"small": (20, 2), "longer": (20, of_test(20, range(4, 20))), "larger": (30, of_test(30, range(4, 30)))}
    source = write_files(tmp_path / "in", lamp_files(cases))
    rows, _, _ = import_into(tmp_path / "out", source, split="auto", short_lengths="2-3", long_lengths="5-40")
    assert rows["small"]["split"] in ("train", "rl", "test")
    assert (rows["longer"]["split"], rows["larger"]["split"]) == ("test_longer", "test_larger")


MYSTERY = LAMPS.replace("lamps", "mystery-4ops").replace("switch-on", "attack").replace("pass", "feast")
CONFIG = """\
instance_dir: mystery/generated_basic
domain_file: mystery/generated_domain.pddl
domain_name: obscure_lamps
instances_template: instance-{}.pddl
actions: {attack: "attack {}", feast: "feast {} from {}"}
encoded_objects: {"l0": "object a", "l": "object_{}"}
"""


def mystery_instances(*plans: str):
    return [{"instance_id": n, "example_instance_ids": [1], "query": f"query {n}", "ground_truth_plan": plan}
            for n, plan in enumerate(plans, 2)]  # fmt: skip


def test_import_problems_reads_planbench(tmp_path):
    pddl = {f"lamps/generated_basic/instance-{n}.pddl": lamp_problem(n, n - 1) + ")" for n in range(2, 6)}
    pddl |= {"lamps/generated_domain.pddl": LAMPS, "pipes/generated_domain.pddl": PIPES}
    pddl |= {f"pipes/generated_basic/instance-{n}.pddl": pipe_problem(n) for n in range(2, 6)}
    plans = [
        lines(lamp_plan(1)) + "; cost = 2 (unit cost)\n",
        "(switch-on object l0)\n(pass object l0 object l1)\n(pass object l1 object l2)\n",
        "(switch-on l1)\n",
        "",
    ]
    bench = {
        "a.json": planbench_json("lamps", mystery_instances(*plans)),
        "b.json": planbench_json("pipes", mystery_instances(lines(pipe_plan(2)))),
    }
    rows, rejected, _ = import_with_pddl(tmp_path, bench, pddl)
    assert plans_of(rows) == {
        "lamps/generated_basic/instance-2": lamp_plan(1),
        "lamps/generated_basic/instance-3": lamp_plan(2),
        "pipes/generated_basic/instance-2": pipe_plan(2),
    }
    row = rows["lamps/generated_basic/instance-3"]
    assert (row["domain"], row["instance"], row["source_prompt"]) == ("lamps", "3", "query 3")
    assert row["problem_pddl"] == lamp_problem(3, 2)
    expected = {"a.json: instance 3": ("invalid plan", "(lamp l1)"), "a.json: instance 4": ("no plan", "")}
    assert_rejected(rejected, expected)


def test_import_problems_reads_planbench_sentences_with_its_configuration(tmp_path):
    pddl = {f"instances/mystery/generated_basic/instance-{n}.pddl": lamp_problem(n, n - 1) for n in (2, 3, 4)}
    # The same names elsewhere: only the configuration tells which are meant.
    pddl |= {f"instances/other/generated_basic/instance-{n}.pddl": lamp_problem(n, 0) for n in (2, 3, 4)}
    pddl |= {"instances/mystery/generated_domain.pddl": MYSTERY, "instances/other/generated_domain.pddl": LAMPS}
    pddl |= {"configs/x.yaml": CONFIG, "configs/broken.yaml": "{"}
    sentences = "[PLAN]\nattack object a\nfeast object a from object_1\n[PLAN END]\n"
    instances = mystery_instances(sentences, "attack object a\nfeast object a to object_1\n", "")
    bench = {"task_1.json": planbench_json("obscure_lamps", instances)}
    folder = write_files(tmp_path / "bench", {**pddl, **bench})
    rows, rejected, _ = import_into(tmp_path / "out", folder / "task_1.json", pddl_dir=str(folder))
    assert plans_of(rows) == {"instances/mystery/generated_basic/instance-2": ["(attack l0)", "(feast l0 l1)"]}
    expected = {
        "task_1.json: instance 2": ("unreadable plan", "feast object a to object_1"),
        "task_1.json: instance 3": ("no plan", ""),
    }
    assert_rejected(rejected, expected)


def test_import_problems_does_not_take_a_problem_of_another_domain(tmp_path):
    pddl = {"x/domain.pddl": LAMPS, **{f"x/instance-{n}.pddl": lamp_problem(n, n - 1) for n in (2, 3, 4, 5)}}
    plans = ("", lines(pipe_plan(3)), lines(lamp_plan(3)))
    files = {"pipes.json": planbench_json("pipes", mystery_instances(*plans))}
    files |= {"lamps.json": planbench_json("LAMPS", [{"instance_id": 5, "ground_truth_plan": ""}])}
    rows, rejected, _ = import_with_pddl(tmp_path, files, pddl, planners=BUILTIN)
    # The plan shows that the fourth is meant; the fifth's domain calls itself as the file does.
    assert plans_of(rows) == {"x/instance-4": lamp_plan(3), "x/instance-5": lamp_plan(4)}
    expected = {
        "pipes.json: instance 1": ("unclear problem file", "x/instance-2.pddl"),
        "pipes.json: instance 2": ("unclear problem file", "x/instance-3.pddl"),
    }
    assert_rejected(rejected, expected)


def test_import_problems_lists_what_is_wrong_with_planbench_files(tmp_path):
    pddl = {"lamps/domain.pddl": LAMPS, "lamps/a/instance-2.pddl": lamp_problem(3, 1)}
    pddl |= {"lamps/b/instance-2.pddl": lamp_problem(4, 1), "lamps/a/instance-3.pddl": lamp_problem(5, 2)}
    instances = [*mystery_instances(lines(lamp_plan(1)), lines(lamp_plan(2)), lines(lamp_plan(1)))]
    instances += [{"query": "x"}, {"instance_id": 3, "ground_truth_plan": 5}]
    instances += [{"instance_id": 2, "ground_truth_plan": "(x)"}]
    files = {
        "good.json": planbench_json("lamps", instances),
        "verify.json": planbench_json("lamps", [], task="task_3_plan_verification"),
        "broken.json": "{",
        "list.json": "[1]",
        "nameless.json": '{"instances": []}',
    }
    rows, _, _ = import_with_pddl(tmp_path, files, pddl)
    assert list(rows) == ["lamps/a/instance-3"]
    files = ("lamps/a/instance-2.pddl", "lamps/b/instance-2.pddl")
    expected = [
        ("broken.json", "unreadable", ("JSON",)),
        ("good.json: instance 1", "unclear problem file", files),
        ("good.json: instance 3", "no problem file", ("instance 4 of lamps",)),
        ("good.json", "unreadable", ("instance_id",)),
        ("good.json", "unreadable", ("ground_truth_plan",)),
        ("good.json: instance 6", "unclear problem file", files),
        ("list.json", "unreadable", ("list.json", "list")),
        ("nameless.json", "unreadable", ("nameless.json", "domain")),
        ("verify.json", "unreadable", ("verify.json", "task_3_plan_verification")),
    ]
    for entry, (source, kind, named) in zip(rejections(tmp_path / "out"), expected, strict=True):
        assert (entry["source"], kind_of_reason(entry["reason"])) == (source, kind)
        assert all(name in entry["reason"] for name in named)


def test_import_problems_reads_the_papers_rows(tmp_path):
    basic, longer = "instances/lamps/generated_basic", "instances/lamps/generated_basic_longer_plan_len"
    pddl = {"instances/lamps/generated_domain.pddl": LAMPS}
    pddl |= {f"{basic}/instance-{n}.pddl": lamp_problem(n, 1) for n in (2, 3)}
    pddl |= {f"{longer}/instance-{n}.pddl": lamp_problem(n + 5, n + 4) for n in (2, 3)}
    rows = [
        paper_row("lamps", "2", lamp_plan(1)),
        paper_row("lamps", "2", lamp_plan(1), prompt_id=1, input="the same in other words"),
        paper_row("lamps", 3, lamp_plan(7)),
        paper_row("lamps", "2", ["(switch-on l0)", "(switch-on l0)"], prompt_id=2),
        paper_row("pipes", "2", pipe_plan(2)),
        paper_row("lamps", "3", "(switch-on l0)"),
        paper_row("lamps", None, lamp_plan(1)),
        paper_row("lamps", "3", [1]),
        [],
        paper_row("lamps", "2", lamp_plan(1), input="half a character: \ud800"),
        paper_row("lamps", "0" * 5000 + "2", []),
    ]
    files = {"t0/test/chunk_0.jsonl": json_lines(rows) + "\n{broken\n"}
    imported, rejected, report = import_with_pddl(tmp_path, files, pddl)
    assert report["kind"] == "paper"
    assert plans_of(imported) == {f"{basic}/instance-2": lamp_plan(1), f"{longer}/instance-3": lamp_plan(7)}
    assert imported[f"{basic}/instance-2"]["source_prompt"] == (
        "You switch lamps.\nAs initial conditions I have that, ..."
    )
    where = "t0/test/chunk_0.jsonl"
    expected = {
        4: ("unclear problem file", f"{basic}/instance-2.pddl, {longer}/instance-2.pddl"),  # valid for neither
        5: ("unclear problem file", f"{basic}/instance-2.pddl, {longer}/instance-2.pddl"),
        6: ("unreadable", "raw_plan"),
        7: ("unreadable", "instance_id"),
        8: ("unreadable", "raw_plan"),
        9: ("unreadable", "list"),
        10: ("unreadable", "JSON"),
        11: ("unclear problem file", f"{'0' * 60} "),  # no plan that would decide; long names are cut
        13: ("unreadable", "JSON"),
    }
    assert_rejected(rejected, {f"{where}:{line}": reason for line, reason in expected.items()})


def test_import_problems_keeps_all_valid_plans_of_a_problem(tmp_path):
    detour = ["(switch-on l0)", "(pass l0 l1)", "(switch-on l0)"]
    rows = [paper_row("lamps", "2", plan) for plan in (lamp_plan(1), ["(pass l0 l1)"], detour, lamp_plan(1))]
    files = {"lamps/domain.pddl": LAMPS, "lamps/instance-2.pddl": lamp_problem(2, 1), "rows.jsonl": json_lines(rows)}
    imported, rejected, _ = import_into(tmp_path / "out", write_files(tmp_path / "in", files))
    assert plans_of(imported) == {"lamps/instance-2": [lamp_plan(1), detour]}
    assert imported["lamps/instance-2"]["completion"] == "switch-on l0 ; pass l0 l1"
    assert rejected == {}


def test_import_problems_writes_our_rows_in_another_style(tmp_path):
    source = write_files(tmp_path / "in", lamp_files({f"p{n}": (n, n - 1) for n in range(2, 8)}))
    settings = {"split": "auto", "short_lengths": "2-4", "long_lengths": "6-9"}
    before, _, report = import_into(tmp_path / "one", source, **settings)
    for path in [*(tmp_path / "one").glob("train.jsonl")]:  # an earlier version could write Parquet
        table = pyarrow.Table.from_pylist(read_jsonl(path))
        pyarrow.parquet.write_table(table, path.with_suffix(".parquet"))
        path.unlink()
    after, rejected, second = import_into(tmp_path / "two", tmp_path / "one", split="keep", prompt_style="pddl")
    assert second["kind"] == "rows"
    assert rejected == {}
    assert second["splits"].keys() == report["splits"].keys()
    made_anew = ("prompt", "completion", "prompt_style")
    kept = [{k: v for k, v in row.items() if k not in made_anew} for row in before.values()]
    assert [{k: v for k, v in row.items() if k not in made_anew} for row in after.values()] == kept
    assert {row["prompt_style"] for row in after.values()} == {"pddl"}


def test_import_problems_takes_obfuscated_rows_as_they_are_split(tmp_path):
    source = tmp_path / "one"
    settings = {"domains": ("ferry",), "unseen_domains": (), "n_train": 2, "n_rl": 0, "n_test": 2, "use_val": False}
    build_dataset(
        BuildConfig(output_dir=str(source), short_lengths="2-9", long_lengths="11-20", planners=BUILTIN, **settings),
        Console(quiet=True),
    )
    _, rejected, report = import_into(tmp_path / "kept", source, split="keep", prompt_style="nl")
    assert rejected == {}
    assert report["splits"].keys() == {"train", "test", "test_longer", "test_larger", "test_obfuscated"}
    assert report["leaks"]["leaks"] == 0
    rows, rejected, _ = import_into(tmp_path / "split", source, split="auto")
    kinds = Counter(map(kind_of_reason, rejected.values()))
    assert kinds["obfuscated"] == 2 and kinds.keys() <= {"obfuscated", "plan length"}
    assert len(rows) + kinds["plan length"] == 8


def test_import_problems_lists_what_is_wrong_with_our_rows(tmp_path):
    first, _, _ = import_into(tmp_path / "one", write_files(tmp_path / "in", GOOD))
    row = next(iter(first.values()))
    spoiled = [
        row,
        {**row, "id": "no-plan", "reference_plan": ["switch-on l0"]},
        {**row, "id": "wrong-plan", "reference_plan": ["(pass l0 l1)"]},
        {key: value for key, value in row.items() if key != "problem_pddl"},
        {**row, "id": "elsewhere", "split": "../test"},
        {**row, "id": "no-text", "reference_plan": [[1]]},
    ]
    source = write_files(tmp_path / "rows", {"test.jsonl": json_lines(spoiled), "train.jsonl": "{broken"})
    rows, rejected, _ = import_into(tmp_path / "two", source, split="keep")
    assert list(rows) == ["good/p"]
    expected = {
        "test.jsonl:2": ("unreadable plan", "switch-on l0"),
        "test.jsonl:3": ("invalid plan", "(on l0)"),
        "test.jsonl:4": ("unreadable", "problem_pddl"),
        "test.jsonl:5": ("unreadable", "split"),
        "test.jsonl:6": ("unreadable plan", "1"),
        "train.jsonl:1": ("unreadable", "JSON"),
    }
    assert_rejected(rejected, expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("source", {"source": "nowhere"}),
        ("source", {"source": "empty"}),
        ("source", {"source": "in/p.pddl", "kind": "pddl"}),
        ("pddl_dir", {"source": "bench.json"}),
        ("pddl_dir", {"pddl_dir": "nowhere"}),
        ("split", {"split": "keep"}),
        ("split", {"split": "a/b"}),
        ("output_dir", {"output_dir": "in/out"}),
        ("replace_invalid_plans", {"replace_invalid_plans": True}),
        ("planner", {"planners": PlannerConfig(planner="magic")}),
        ("max_train_objects", {"max_train_objects": 0}),
        ("max_train_objects", {"split": "test", "max_train_objects": 5}),
        ("unseen_domains", {"split": "test", "unseen_domains": ("a",)}),
        ("long_lengths", {"long_lengths": "17-20"}),
    ],
)
def test_import_problems_refuses_settings_that_do_not_fit(name, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"in/domain.pddl": LAMPS, "in/p.pddl": lamp_problem(3, 1), "empty/x.txt": ""})
    write_files(tmp_path, {"bench.json": planbench_json("lamps", [])})
    with pytest.raises(ConfigError, match=rf"\b{name}\b"):
        import_problems(ImportConfig(**{"source": "in", "planners": NO_PLANNER, **settings}), Console(quiet=True))
    assert not (tmp_path / "data").exists()


def test_import_command_leaves_a_finished_data_set_alone(tmp_path, capsys):
    source, out = write_files(tmp_path / "in it's", GOOD), tmp_path / "out"
    command = ["import", "--source", str(source), "--output_dir", str(out), "--split", "rl", "--planner", "none"]
    run(command)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rl", "lamps", "1", "2-2-2", "3-3-3"] in shown
    made = {path.name: path.read_bytes() for path in out.iterdir()}
    run([*command, "--workers", "1"])
    assert str(out) in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in out.iterdir()} == made
    with pytest.raises(ConfigError, match=r"output_dir.*split"):
        run([*command, "--split", "test"])
    assert json.loads(made["report.json"])["how"] == "python -m jaxppo.planning import --config config.yaml"
