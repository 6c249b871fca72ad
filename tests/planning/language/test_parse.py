"""PDDL text to domains and problems, and one-line errors that name file and line."""

import pytest

from jaxppo.errors import PddlError
from jaxppo.planning.language.numeric import Update
from jaxppo.planning.language.parse import (
    Literal,
    Metric,
    Parameter,
    UnsupportedPddlError,
    parse_domain,
    parse_problem,
    parse_problem_names,
)
from tests.planning.cpu_time import within

DELIVERY = """
(define (domain delivery) ; comments count as blank
  (:requirements :strips :typing :equality :negative-preconditions :action-costs)
  (:types place thing - object
          truck box - thing
          VAN - truck
          raft - (either truck box))
  (:constants hub - place)
  (:predicates (at ?t - thing ?p - place) (in ?b - box ?t - truck) (shut ?p - place))
  (:functions (total-cost) - number (length ?a ?b - place) - number)
  (:action drive :parameters (?t - truck ?from ?to - place)
    :precondition (and (at ?t ?from) (not (= ?from ?to)) (not (shut ?to)))
    :effect (and (at ?t ?to) (not (at ?t ?from)) (increase (total-cost) (length ?from ?to))))
  (:action open :parameters (?p - place) :precondition () :effect (not (shut ?p)))
  (:action load :parameters (?b - (either box raft) ?t - truck)
    :precondition (and (at ?t hub) (and (at ?b hub)))
    :effect (and (in ?b ?t) (not (at ?b hub)))))
"""
ERRAND = """(define (problem errand)
  (:domain delivery)
  (:objects Home - place v - van b1 b2 - box)
  (:init (at v home) (at b1 hub) (= (length home hub) 3) (= (total-cost) 0) (at v home) (not (shut hub)))
  (:goal (and (in b1 v) (not (at v hub))))
  (:metric minimize (total-cost)))
"""


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
    assert (drive.add, drive.delete) == ((("at", "?t", "?to"),), (("at", "?t", "?from"),))
    assert drive.updates == (Update("increase", ("total-cost",), ("length", "?from", "?to")),)
    assert domain.actions["open"].precondition == ()
    assert domain.actions["load"].parameters[0].types == ("box", "raft")


def test_is_of_type_follows_the_hierarchy():
    domain = parse_domain(DELIVERY)
    assert domain.is_of_type(("van",), ("truck",))
    assert domain.is_of_type(("raft",), ("box",)) and domain.is_of_type(("raft",), ("truck",))
    assert not domain.is_of_type(("truck",), ("van",))
    assert domain.is_of_type(("box",), ("van", "thing"))


def test_parse_problem_keeps_source_order():
    problem = parse_problem(ERRAND, parse_domain(DELIVERY))
    assert problem.name == "errand"
    assert list(problem.objects) == ["hub", "home", "v", "b1", "b2"]
    assert problem.init_order == (("at", "v", "home"), ("at", "b1", "hub"))
    assert problem.init == frozenset(problem.init_order)
    assert problem.goal == (Literal(("in", "b1", "v"), True), Literal(("at", "v", "hub"), False))
    assert problem.values == {("length", "home", "hub"): 3.0, ("total-cost",): 0.0}
    assert problem.metric == Metric("minimize", ("total-cost",))


def test_equal_texts_are_parsed_once():
    assert parse_domain(DELIVERY) is parse_domain(str(DELIVERY))
    domain = parse_domain(DELIVERY)
    assert parse_problem(ERRAND, domain) is parse_problem(ERRAND, domain)


def test_names_are_case_insensitive():
    domain = parse_domain(DELIVERY.upper())
    assert parse_problem(ERRAND.upper(), domain).init == parse_problem(ERRAND, parse_domain(DELIVERY)).init


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("(:constants hub - place)", "(:constants hub - place", 18, "expected ')' for the '(' of line 2"),
        ("(:constants hub - place)", "(:constants hub - place))", 17, "expected '(' or the end of the text, got ')'"),
        ("(define (domain delivery)", "(define (problem delivery)", 2, "expected '(define (domain NAME) ...)'"),
        ("(:constants hub - place)", "(:constants hub - spot)", 8, "a type declared under ':types', got 'spot'"),
        ("(:constants hub - place)", "(:constants hub -)", 8, "expected names, '-' and a type"),
        ("(:constants hub - place)", "(:constants 7up - place)", 8, "expected an object"),
        ("(:constants hub - place)", "(:constants not - place)", 8, "not a word of the language"),
        ("(at ?t hub)", "(at ?t depot)", 16, "expected a declared object or constant, got 'depot'"),
        ("(at ?t hub)", "(at ?z hub)", 16, "expected a declared variable, got '?z'"),
        ("(at ?t hub)", "(at ?t ?b)", 16, "expected an argument of type 'place', got '?b'"),
        ("(at ?t hub)", "(at ?t)", 16, "expected 2 argument(s) for 'at', got '(at ?t)'"),
        ("(at ?t hub)", "(near ?t hub)", 16, "expected a predicate declared under ':predicates', got '(near ?t hub)'"),
        ("(at ?t hub)", "hub", 16, "expected a condition '(predicate ...)', got 'hub'"),
        ("(in ?b ?t)", "(= ?b ?t)", 17, "expected an effect on a predicate"),
        (":effect (not (shut ?p))", ":effect ()", 14, "expected an effect '(predicate ...)' or '(and)', got '()'"),
        (":precondition () ", "", 14, "expected ':parameters (...) :precondition (...) :effect (...)'"),
        ("(?b - (either box raft) ?t - truck)", "(?b - box ?b - truck)", 15, "every parameter to have its own name"),
        (
            "(?b - (either box raft) ?t - truck)",
            "(b - box ?t - truck)",
            15,
            "expected a variable such as '?x', got 'b'",
        ),
        ("(:action open", "(:action drive", 14, "the action 'drive' to be declared once"),
        ("(shut ?p - place)", "(at ?p - place)", 9, "expected a predicate to be declared once"),
        ("(:constants hub - place)", "constants", 8, "expected a section '(:keyword ...)', got 'constants'"),
    ],
)
def test_parse_domain_names_file_line_and_fault(old, new, line, expected):
    assert old in DELIVERY
    with pytest.raises(PddlError) as caught:
        parse_domain(DELIVERY.replace(old, new), "delivery.pddl")
    assert not isinstance(caught.value, UnsupportedPddlError)
    assert str(caught.value).startswith(f"delivery.pddl:{line}: ")
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "feature"),
    [
        ("(:durative-action x :parameters ())", ":durative-action"),
        ("(:constraints (always (shut hub)))", ":constraints"),
        ("(:process x :parameters () :precondition () :effect (and))", ":process"),
        ("(:event x :parameters () :precondition () :effect (and))", ":event"),
        ("(:action x :parameters () :precondition (preference p1 (shut hub)) :effect (and))", "preference"),
        ("(:action x :parameters () :precondition (at start (shut hub)) :effect (and))", "numeric or nested (at start"),
    ],
)
def test_parse_domain_refuses_what_needs_val_by_name(section, feature):
    with pytest.raises(UnsupportedPddlError) as caught:
        parse_domain(DELIVERY.replace("(:action open", f"{section}\n(:action open"))
    assert str(caught.value).startswith("<domain>:14: got '" + feature)
    assert str(caught.value).endswith("', which is not supported by the built-in validator")


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("(:constants hub - place)", "(:constants hub - place) (:types x)", 8, "expected one section ':types'"),
        ("(:action open", "(:requirements :adl) (:action open", 14, "one section ':requirements'"),
        (
            ":parameters (?p - place)",
            ":parameters (?length - place)",
            14,
            "a variable that is not named like a function",
        ),
        (":parameters (?p - place)", ":parameters (?when - place)", 14, "a variable that is not named like a function"),
        ("(:action open", "(:action length", 14, "an action that is not named like a function"),
        ("(:constants hub - place)", "(:constants length - place)", 8, "an object that is not named like a function"),
        ("(shut ?p - place)", "(length ?p - place)", 9, "a predicate to be declared once, and not as a function"),
        ("(shut ?p - place)", "(shut ?p)", 12, "a type for it and for what it stands for"),
        ("(at ?t hub)", "(exists (?e) (= ?e hub))", 16, "a type for every variable"),
        (":strips :typing", ":strips typing", 3, "a requirement ':keyword'"),
        (":strips", "é", 3, "ASCII characters outside comments, got '\\\\xe9'"),
        ("truck box - thing", "truc\u212a box - thing", 5, "ASCII characters outside comments, got 'truc\\\\u212a'"),
        ("(shut ?p - place)", "(shut ?p - object)", 12, None),
    ],
)
def test_parse_domain_refuses_what_val_reads_otherwise(old, new, line, expected):
    assert old in DELIVERY
    if expected is None:  # an argument of a declared supertype is fine where the hierarchy says so
        parse_domain(DELIVERY.replace(old, new))
        return
    with pytest.raises(PddlError, match=expected) as caught:
        parse_domain(DELIVERY.replace(old, new))
    assert caught.value.line == line


def test_parse_domain_wants_declarations_first_and_an_action():
    action = "(:action a :parameters () :precondition () :effect (p))"
    with pytest.raises(PddlError, match="the declarations in front of the actions"):
        parse_domain(f"(define (domain d) {action} (:predicates (p)))")
    with pytest.raises(PddlError, match="an action or a rule"):
        parse_domain("(define (domain d) (:predicates (p)))")


def test_object_is_above_other_types_only_where_declared():
    text = """(define (domain d) (:types t{}) (:predicates (p ?x - object))
      (:action a :parameters (?x - t) :precondition (p ?x) :effect (and)))"""
    assert parse_domain(text.format(" - object")).ancestors["t"] == {"t", "object"}
    with pytest.raises(PddlError, match="expected an argument of type 'object', got '\\?x'"):
        parse_domain(text.format(""))


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("(at b1 hub)", "(at b9 hub)", 4, "expected a declared object or constant, got 'b9'"),
        ("(at b1 hub)", "(at hub b1)", 4, "expected an argument of type 'thing', got 'hub'"),
        ("(at b1 hub)", "(= b1 hub)", 4, "expected '(= (function ...) number)', got '(= b1 hub)'"),
        ("(at b1 hub)", "(not (at b1 hub) hub)", 4, "expected '(not (predicate ...))'"),
        ("(at b1 hub)", "b1", 4, "expected a fact '(predicate object ...)', got 'b1'"),
        ("v - van", "v - bus", 3, "expected a type declared under ':types', got 'bus'"),
        ("v - van", "v hub - van", 3, "expected an object to be declared with one type, got 'hub'"),
        ("(in b1 v)", "(in b1)", 5, "expected 2 argument(s) for 'in'"),
        ("(in b1 v)", "(in b1 ?v)", 5, "expected a declared variable, got '?v'"),
        ("(in b1 v)", "(at b1 v)", 5, "expected an argument of type 'place', got 'v'"),
        ("(:domain delivery)", "", 1, "a section '(:domain NAME)' in front"),
        ("(:domain delivery)", "(:domain delivery :typing)", 2, "expected '(:domain NAME)'"),
        ("(:metric", "(:goal (in b2 v)) (:metric", 6, "expected one section ':goal'"),
        ("(:metric", "(:init) (:metric", 6, "expected one section ':init'"),
        ("minimize", "least", 6, "'(:metric minimize expression)' or"),
        ("v - van", "v - van total-cost - place", 3, "an object that is not named like a function"),
        ("v - van", "v - van spare", 3, None),
        ("(at b1 hub)", "(at spare hub)", 4, "a declared object"),
        ("(define (problem errand)", "(define (problem)", 1, "expected '(define (problem NAME) ...)'"),
    ],
)
def test_parse_problem_names_file_line_and_fault(old, new, line, expected):
    assert old in ERRAND
    if expected is None:
        parse_problem(ERRAND.replace(old, new), parse_domain(DELIVERY), "errand.pddl")
        return
    with pytest.raises(PddlError) as caught:
        parse_problem(ERRAND.replace(old, new), parse_domain(DELIVERY), "errand.pddl")
    assert str(caught.value).startswith(f"errand.pddl:{line}: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize("text", ["", "; only a comment", "(a)(b)", "word", "(define (problem p)) tail", "()"])
def test_parse_problem_refuses_text_that_is_not_one_definition(text):
    with pytest.raises(PddlError, match=r"^<problem>:1: expected "):
        parse_problem(text, parse_domain(DELIVERY))


def test_parse_problem_needs_an_init_section():
    with pytest.raises(PddlError, match=r"a section '\(:init \.\.\.\)'"):
        parse_problem("(define (problem p) (:domain d) (:goal ()))", parse_domain(DELIVERY))


def test_parse_problem_refuses_facts_at_a_time():
    text = ERRAND.replace("(at b1 hub)", "(at 5 (at b1 hub))")
    with pytest.raises(UnsupportedPddlError, match="numeric or nested"):
        parse_problem(text, parse_domain(DELIVERY))


def test_an_untyped_domain_may_name_objects_of_its_problems():
    domain = parse_domain(
        "(define (domain d) (:predicates (q ?x)) (:action go :parameters () :precondition (q a) :effect (q b)))"
    )
    assert domain.late_constants == {"a", "b"}
    problem = "(define (problem p) (:domain d) (:objects a {}) (:init (q a)) (:goal (q a)))"
    assert parse_problem(problem.format("b"), domain).objects.keys() == {"a", "b"}
    with pytest.raises(PddlError, match="expected the object 'b', which an action of the domain names"):
        parse_problem(problem.format("c"), domain)


def test_types_may_form_a_cycle():
    domain = parse_domain(
        "(define (domain d) (:types a - b b - a) (:predicates (p ?x - a))"
        " (:action go :parameters (?x - b) :precondition () :effect (p ?x)))"
    )
    assert domain.ancestors["a"] == {"a", "b"}


def test_deep_parentheses_are_an_error_and_not_a_crash():
    with pytest.raises(PddlError, match="at most 100 open parentheses"):
        parse_domain("(" * 100_000)


def test_parse_problem_names_reads_files_beyond_strips():
    domain = DELIVERY.replace(":precondition ()", ":precondition (forall (?x - place) (shut ?x))")
    domain = domain.replace("(:action open", "(:derived (shut ?p - place) (shut ?p)) (:action open")
    problem = parse_problem_names(domain, ERRAND.replace("(in b1 v)", "(or (in b1 v))"))
    assert problem.domain.actions["open"].parameters == (Parameter("?p", ("place",)),)
    assert (problem.goal, problem.init) == ((), frozenset())
    with pytest.raises(UnsupportedPddlError, match=":durative-action"):
        parse_problem_names(DELIVERY.replace("(:action open", "(:durative-action open"), ERRAND)


def test_functions_are_declared_once():
    twice = DELIVERY.replace("(:functions", "(:functions (total-cost)")
    with pytest.raises(PddlError, match="expected a function to be declared once"):
        parse_domain(twice)


def test_a_long_chain_of_types_is_refused_soon_and_a_shorter_one_is_read():
    def domain(n_types):
        types = " ".join(f"t{n} - t{n + 1}" for n in range(n_types))
        return f"(define (domain d) (:types {types}) (:action a :parameters () :precondition () :effect (and)))"

    too_many = "1: expected types that have at most 500000 types above them, all in all, got 't0'"
    with within(2), pytest.raises(PddlError, match=too_many):
        parse_domain(domain(20_000))
    assert len(parse_domain(domain(500)).ancestors["t0"]) == 501
