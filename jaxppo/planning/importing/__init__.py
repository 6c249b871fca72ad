"""Problems that others made, as data sets: folders of PDDL, PlanBench, the paper's ten columns, rows of our own.

In: files. Out: folders of rows with a card, and what was left out with reasons.
"""

__all__ = [
    "importers",
    "instance_files",
    "pddl_folder",
    "planbench",
    "planbench_sentences",
    "source_files",
]
