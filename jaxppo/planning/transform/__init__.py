"""Problems changed: canonical forms, renamed objects, obfuscated words, another first state.

In: texts of PDDL. Out: texts of PDDL, or the form that all renamings of a problem share.
"""

__all__ = ["canonical", "renaming", "restart"]
