"""PDDL and plans as data: parse domains, problems and plans.

In: text. Out: `Domain`, `Problem`, actions.
"""
