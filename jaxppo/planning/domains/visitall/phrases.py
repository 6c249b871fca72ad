"""Visitall in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
    about="A robot walks from cell to cell and must visit some of them.",
    kinds={
        "cell": ("a cell", "cells"),
        "object": ("something", "anything"),
    },
    predicates={
        "connected": "a way leads from {0} to {1}",
        "at-robot": "the robot is on {0}",
        "visited": "{0} has been visited",
    },
    actions={
        "move": "walk from {0} to {1}",
    },
)
