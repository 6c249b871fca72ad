"""The plan in an answer: what is cut around it, and which answers are left whole and so cannot be read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.planning import PlanError, parse_completion, render_completion
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.prompts import PROMPT_STYLES
from jaxppo.planning.prompts.answers import plan_span


def plan_text(text):
    start, end = plan_span(text)
    return text[start:end]


PLAN = (("unstack", "b", "a"), ("stack", "a", "b"))
THINKING = ["<think>{}</think>", "<think>\n{}\n</think>\n\n", " \n<think>{}</think>", "{}\n</think>\n", "{}</think>"]
BLOCKS = [
    "```\n{}\n```",
    "Here it is:\n\n```pddl\n{}\n```\nThat works (I think).",
    "   ``` text \r\n{}\r\n  ```  \r\n",
    "<plan>{}</plan>",
    "So: <PLAN>\n{}\n</Plan>, as asked.",
    "[PLAN]\n{}\n[PLAN END]",
    "Answer [plan] {} [plan end]",
]
LEFT_WHOLE = {
    "two fences": "```\n{x}\n```\n```\n{x}\n```",
    "an open fence": "```\n{x}",
    "ends in the wrong order": "</plan>{x}<plan>",
    "mixed ends": "<plan>{x}[PLAN END]",
    "a tag in a fence": "```\n<plan>{x}</plan>\n```",
    "a block and an open one": "<plan>{x}</plan> <plan>",
    "a fence in one line": "```{x}```",
    "a begin after words": "So ```\n{x}\n```",
    "words after the end": "```\n{x}\n``` so",
    "two words of language": "```my pddl\n{x}\n```",
    "unlike fences": "```\n{x}\n````",
    "open thinking": "<think>{x}",
    "thinking that is not at the start": "Well <think>hm</think>{x}",
    "thinking in thinking": "<think><think>a</think>{x}",
    "thinking that ends twice": "<think>a</think>{x}</think>",
    "only two ends of thinking": "a</think>{x}</think>",
    "open thinking and a block": "<think>\n```\n{x}\n```",
    "thinking after a block": "<plan>{x}</plan><think></think>",
}


def written(style):
    return render_completion(PLAN, style, BLOCKSWORLD.pddl)


def read(text, style):
    return parse_completion(text, style, BLOCKSWORLD.pddl)


each_style = pytest.mark.parametrize("style", PROMPT_STYLES)


@each_style
def test_a_marked_plan_and_one_after_thinking_are_read(style):
    for block in ("{}", *BLOCKS):
        marked = block.format(written(style))
        for answer in (marked, *(form.format("First (stack a b)? ; No. ``` <plan>") + marked for form in THINKING)):
            assert read(answer, style).actions == PLAN and read(answer, style).error is None, answer


@pytest.mark.parametrize("case", LEFT_WHOLE)
def test_every_other_arrangement_is_left_whole_and_cannot_be_read(case):
    for style in PROMPT_STYLES:
        answer = LEFT_WHOLE[case].format(x=written(style))
        assert plan_text(answer) == answer
        assert read(answer, style).error is PlanError.SYNTAX


@each_style
def test_a_block_is_read_as_strictly_as_without_and_nothing_outside_of_it_or_in_the_thinking_counts(style):
    for junk in (f"Plan: {written(style)}", f"{written(style)} done!", f"{written(style)}\n(junk"):
        for block in ("{}", *BLOCKS):
            assert read(block.format(junk), style).error is PlanError.SYNTAX
    for empty in ("<plan></plan>", "[PLAN] [PLAN END]", "```\n```", "```pddl\n \n```"):
        assert read(f"{written(style)}\n{empty}\n{written(style)}", style).actions == ()
    assert read(f"<think>{written(style)}</think>", style).actions == ()


MARKS = ["<plan>", "</plan>", "[PLAN]", "[PLAN END]", "```"]
PIECES = [*MARKS, "`", "\n", "<think>", "</think>", "pddl", " ", "(stack a b)"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_what_is_cut_is_never_more_than_one_thinking_part_and_one_block(text):
    kept = plan_text(text)
    assert kept in text
    marks = sum(text.rpartition("</think>")[2].count(mark) for mark in MARKS)
    assert kept == text or "</think>" in text or marks == 2
    assert "<think>" not in kept or kept == text


@pytest.mark.parametrize(
    "piece", ["```", "```\n", "`` ", "<think>", "</think>", "<plan>", "[PLAN]", "[plan", "<", "\n"]
)
@pytest.mark.parametrize("frame", ["{}", "```\n{}", "<plan>{}</plan>", "<think>{}</think>", "```{}\nx\n```"])
def test_many_marks_take_linear_time(piece, frame):
    """Quadratic time on half a megabyte would take minutes."""
    text = frame.format(piece * (500_000 // len(piece)))
    assert plan_text(text) in text
