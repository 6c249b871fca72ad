"""Problems changed but the same: canonical forms, renamed objects, obfuscated words.

In: texts of PDDL. Out: texts of PDDL, or the form that all renamings of a problem share.
"""

__all__ = ["canonical", "renaming"]
