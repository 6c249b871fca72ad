"""Reference plans: built-in search and external planners, run in processes with limits; the states between actions.

In: a problem. Out: a plan, or why there is none.
"""

__all__ = ["blocksworld", "planners", "search", "walk"]
