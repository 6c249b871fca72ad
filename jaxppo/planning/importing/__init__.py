"""Import planning problems: folders of PDDL, PlanBench, the paper's ten columns, rows of our own."""

__all__ = ["importers"]
