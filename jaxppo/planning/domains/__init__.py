"""One folder per planning domain: its `domain.pddl` and its problem generator."""
