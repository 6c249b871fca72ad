"""A small typed domain of rooms, with a problem: a vault to unlock and to enter."""

DOMAIN = """(define (domain rooms)
  (:requirements :strips :typing :equality :negative-preconditions)
  (:types room item - object key - item)
  (:constants hall - room)
  (:predicates (in ?r - room) (has ?i - item) (lies ?i - item ?r - room) (locked ?r - room) (seen ?r - room))
  (:action walk :parameters (?a ?b - room)
    :precondition (and (in ?a) (not (= ?a ?b)) (not (locked ?b)))
    :effect (and (in ?b) (not (in ?a)) (seen ?b)))
  (:action stay :parameters (?a ?b - room) :precondition (and (in ?a) (= ?a ?b)) :effect (and (in ?a) (not (in ?b))))
  (:action take :parameters (?i - item) :precondition (and (in hall) (lies ?i hall))
    :effect (and (has ?i) (not (lies ?i hall))))
  (:action unlock :parameters (?r - room ?k - key) :precondition (has ?k) :effect (not (locked ?r)))
  (:action rest :parameters () :precondition () :effect (and)))
"""
PROBLEM = """(define (problem p) (:domain rooms)
  (:objects vault attic - room k - key cup - item)
  (:init (in attic) (lies k hall) (lies cup vault) (locked vault))
  (:goal (and (in vault) (not (locked vault)))))
"""
SOLUTION = "(walk attic hall) (take k) (unlock vault k) (walk hall vault)"
