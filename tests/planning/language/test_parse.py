"""PDDL text to domains and problems, and one-line errors that name file and line."""

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning.language.numeric import Update
from jaxppo.planning.language.parse import (
    Literal,
    Parameter,
    ProblemMetric,
    UnsupportedPddlError,
    parse_domain,
    parse_problem,
    parse_problem_names,
)
from tests.planning.delivery import DELIVERY, ERRAND


def test_parse_domain_reads_every_part():
    domain = parse_domain(DELIVERY)
    assert domain.name == "delivery"
    assert domain.types["van"] == ("truck",) and domain.types["raft"] == ("truck", "box")
    assert domain.ancestors["van"] == {"van", "truck", "thing", "object"}
    assert domain.constants == {"hub": ("place",)}
    assert domain.predicates["at"] == (("thing",), ("place",))
    drive = domain.actions["drive"]
    assert drive.parameters == (
        Parameter("?t", ("truck",)),
        Parameter("?from", ("place",)),
        Parameter("?to", ("place",)),
    )
    assert drive.precondition == (
        Literal(("at", "?t", "?from"), True),
        Literal(("=", "?from", "?to"), False),
        Literal(("shut", "?to"), False),
    )
    [always] = drive.effects
    assert (always.parameters, always.conditions) == ((), ())
    assert (always.add, always.delete) == ([("at", "?t", "?to")], [("at", "?t", "?from")])
    assert always.updates == [Update("increase", ("total-cost",), ("length", "?from", "?to"))]
    assert domain.actions["open"].precondition == ()
    assert domain.actions["load"].parameters[0].types == ("box", "raft")
    # Types follow the hierarchy.
    assert domain.is_of_type(("van",), ("truck",)) and not domain.is_of_type(("truck",), ("van",))
    assert domain.is_of_type(("raft",), ("box",)) and domain.is_of_type(("raft",), ("truck",))
    assert domain.is_of_type(("box",), ("van", "thing"))


def test_parse_problem_keeps_source_order():
    problem = parse_problem(ERRAND, parse_domain(DELIVERY))
    assert problem.name == "errand"
    assert list(problem.objects) == ["hub", "home", "v", "b1", "b2"]
    assert problem.init_order == (("at", "v", "home"), ("at", "b1", "hub"))
    assert problem.init == frozenset(problem.init_order)
    assert problem.goal == (Literal(("in", "b1", "v"), True), Literal(("at", "v", "hub"), False))
    assert problem.values == {("length", "home", "hub"): 3.0, ("total-cost",): 0.0}
    assert problem.metric == ProblemMetric("minimize", ("total-cost",))


def test_equal_texts_are_parsed_once_and_names_are_case_insensitive():
    domain = parse_domain(DELIVERY)
    assert domain is parse_domain(str(DELIVERY)) and parse_problem(ERRAND, domain) is parse_problem(ERRAND, domain)
    upper = parse_problem(ERRAND.upper(), parse_domain(DELIVERY.upper()))
    assert upper.init == parse_problem(ERRAND, domain).init


def check_fault(read, text: str, old: str, new: str, line: int, named: str) -> None:
    """See that a text in which `old` became `new` is an error of one line that names file, line and what is wrong."""
    assert old in text
    with pytest.raises(PddlError) as caught:
        read(text.replace(old, new), "some.pddl")
    assert type(caught.value) is PddlError
    message = str(caught.value)
    assert message.startswith(f"some.pddl:{line}: ") and named in message and "\n" not in message


HUB = "(:constants hub - place)"
SHUT = "(shut ?p - place)"
LOADED = "(?b - (either box raft) ?t - truck)"


@pytest.mark.parametrize(
    ("old", "new", "line", "named"),
    [
        (HUB, "(:constants hub - place", 17, "line 2"),
        ("(define (domain delivery)", "(define (problem delivery)", 2, "domain"),
        (":strips", "é", 3, "'\\xe9'"),
        ("truck box - thing", "truc\u212a box - thing", 5, "'\\u212a'"),
        # Declarations.
        (HUB, "constants", 8, "'constants'"),
        ("(:action open", "(:requirements :adl) (:action open", 14, "':requirements'"),
        (HUB, "(:constants hub - spot)", 8, "'spot'"),
        (HUB, "(:constants 7up - place)", 8, "'7'"),
        (HUB, "(:constants not - place)", 8, "'not'"),
        (HUB, "(:constants length - place)", 8, "'length'"),
        (SHUT, "(at ?p - place)", 9, "(at "),
        (SHUT, "(shut ?p)", 12, "'?to'"),
        (SHUT, "shut", 9, "'shut'"),
        ("(:functions", "(:functions (total-cost)", 10, "(total-cost)"),
        # Operators and their parameters.
        ("(:action open", "(:action drive", 14, "'drive'"),
        ("(:action open", "(:action length", 14, "length"),
        ("(:action open", "(:action) (:action open", 14, ":action NAME"),
        (":precondition () ", ":precondition () :precondition () ", 14, ":precondition"),
        (":precondition () ", ":condition () ", 14, ":precondition"),
        (LOADED, "(?b - box ?b - truck)", 16, "'?t'"),
        (LOADED, "(b - box ?t - truck)", 15, "'b'"),
        (":parameters (?p - place)", ":parameters (?length - place)", 14, "'?length'"),
        # Conditions and effects.
        ("(at ?t hub)", "hub", 16, "'hub'"),
        ("(at ?t hub)", "(near ?t hub)", 16, "(near ?t hub)"),
        ("(at ?t hub)", "(at ?t)", 16, "(at ?t)"),
        ("(at ?t hub)", "(at ?t depot)", 16, "'depot'"),
        ("(at ?t hub)", "(at ?z hub)", 16, "'?z'"),
        ("(at ?t hub)", "(at ?t ?b)", 16, "'?b'"),
        ("(at ?t hub)", "(exists (?e) (= ?e hub))", 16, "?e"),
        ("(in ?b ?t)", "(= ?b ?t)", 17, "(= ?b ?t)"),
    ],
)
def test_parse_domain_names_file_line_and_fault(old, new, line, named):
    check_fault(parse_domain, DELIVERY, old, new, line, named)


@pytest.mark.parametrize(
    ("old", "new", "line", "named"),
    [
        ("(:domain delivery)", "", 1, "(:domain NAME)"),
        ("(:domain delivery)", "(:domain length)", 2, "'length'"),
        ("(problem errand)", "(problem length)", 1, "'length'"),
        ("(:goal", "(:objects c1 - box) (:goal", 5, ":objects"),
        ("(:goal", "(:length :serial) (:goal", 5, ":length"),
        ("(:goal", "(:length :serial many) (:goal", 5, ":length"),
        ("v - van", "v - bus", 3, "'bus'"),
        ("v - van", "v@ - van", 3, "'@'"),
        ("(at b1 hub)", "(near b1 hub)", 4, "near"),
        ("(at b1 hub)", "(at b1)", 4, "'at'"),
        ("(at b1 hub)", "(at b9 hub)", 4, "'b9'"),
        ("(at b1 hub)", "(at hub b1)", 4, "'hub'"),
        ("(at b1 hub)", "(= b1 hub)", 4, "(= b1 hub)"),
        ("(at b1 hub)", "(not (at b1 hub) hub)", 4, "(not "),
        ("(at b1 hub)", "b1", 4, "'b1'"),
        ("(in b1 v)", "(in b1)", 5, "'in'"),
        ("(in b1 v)", "(at b1 v)", 5, "'v'"),
        ("(:metric", "(:goal (in b2 v)) (:metric", 6, ":goal"),
        ("minimize", "least", 6, "least"),
    ],
)
def test_parse_problem_names_file_line_and_fault(old, new, line, named):
    def read(text, source):
        return parse_problem(text, parse_domain(DELIVERY), source)

    check_fault(read, ERRAND, old, new, line, named)


NO_DEFINITION = ["", "; only a comment", "(a)(b)", "word", "(define (problem p)) tail", "()", ")", "(" * 100_000]


@pytest.mark.parametrize("text", NO_DEFINITION, ids=len)
def test_parse_problem_refuses_text_that_is_not_one_definition(text):
    with pytest.raises(PddlError, match=r"^<problem>:1: expected "):
        parse_problem(text, parse_domain(DELIVERY))


@pytest.mark.parametrize(
    ("section", "feature"),
    [
        ("(:durative-action x :parameters ())", ":durative-action"),
        ("(:constraints (always (shut hub)))", ":constraints"),
        ("(:action x :vars (?p - place) :effect (and))", ":vars"),
        ("(:process x :parameters () :precondition () :effect (and))", ":process"),
        ("(:event x :parameters () :precondition () :effect (and))", ":event"),
        ("(:action x :parameters () :precondition (preference p1 (shut hub)) :effect (and))", "preference"),
        ("(:action x :parameters () :precondition (at start (shut hub)) :effect (and))", "(at start"),
        ("(:action x :parameters () :precondition () :effect (and (increase (total-cost) (#t))))", "#t"),
    ],
)
def test_parse_domain_refuses_what_needs_val_by_name(section, feature):
    with pytest.raises(UnsupportedPddlError) as caught:
        parse_domain(DELIVERY.replace("(:action open", f"{section}\n(:action open"))
    assert str(caught.value).startswith("<domain>:14: ") and feature in str(caught.value)
    with pytest.raises(UnsupportedPddlError, match=r"^<problem>:4: .*\(at 5"):
        parse_problem(ERRAND.replace("(at b1 hub)", "(at 5 (at b1 hub))"), parse_domain(DELIVERY))


def test_parse_domain_wants_declarations_first_and_an_action():
    with pytest.raises(UnsupportedPddlError, match="situation"):
        parse_domain("(define (situation s))")
    action = "(:action a :parameters () :precondition () :effect (p))"
    with pytest.raises(PddlError, match=":predicates"):
        parse_domain(f"(define (domain d) {action} (:predicates (p)))")
    with pytest.raises(PddlError, match="function"):
        parse_domain(f"(define (domain d) (:functions (p)) (:predicates (p)) {action})")
    with pytest.raises(PddlError, match=r"^<domain>:1"):
        parse_domain("(define (domain d) (:predicates (p)))")


def test_object_is_above_other_types_only_where_declared_and_types_may_form_a_cycle():
    text = """(define (domain d) (:types t{}) (:predicates (p ?x - object))
      (:action a :parameters (?x - t) :precondition (p ?x) :effect (and)))"""
    assert parse_domain(text.format(" - object")).ancestors["t"] == {"t", "object"}
    with pytest.raises(PddlError, match=r"'object'.*'\?x'"):
        parse_domain(text.format(""))
    cycle = "(define (domain d) (:types a - b b - a) (:predicates (p ?x - a))"
    action = "(:action go :parameters (?x - b) :precondition () :effect (p ?x)))"
    assert parse_domain(cycle + action).ancestors["a"] == {"a", "b"}


def test_an_untyped_domain_may_name_objects_of_its_problems():
    domain = parse_domain(
        "(define (domain d) (:predicates (q ?x)) (:action go :parameters () :precondition (q a) :effect (q b)))"
    )
    assert domain.late_constants == {"a", "b"}
    problem = "(define (problem p) (:domain d) (:objects a {}) (:init (q a)) (:goal (q a)))"
    assert parse_problem(problem.format("b"), domain).objects.keys() == {"a", "b"}
    with pytest.raises(PddlError, match="'b'"):
        parse_problem(problem.format("c"), domain)


def test_parse_problem_names_reads_files_beyond_strips():
    domain = DELIVERY.replace(":precondition ()", ":precondition (forall (?x - place) (shut ?x))")
    domain = domain.replace("(:action open", "(:derived (shut ?p - place) (shut ?p)) (:action open")
    problem = parse_problem_names(domain, ERRAND.replace("(in b1 v)", "(or (in b1 v))"))
    assert problem.domain.actions["open"].parameters == (Parameter("?p", ("place",)),)
    assert (problem.goal, problem.init) == ((), frozenset())
    with pytest.raises(UnsupportedPddlError, match=":task"):
        parse_problem_names(DELIVERY.replace("(:action open", "(:task open"), ERRAND)
