"""A small temporal domain: pots are fired, one at a time, in a kiln that must stay lit."""

DOMAIN = """(define (domain kiln)
  (:requirements :typing :durative-actions)
  (:types pot oven)
  (:predicates (raw ?p - pot) (fired ?p - pot) (free ?o - oven) (lit ?o - oven))
  (:durative-action fire
    :parameters (?p - pot ?o - oven)
    :duration (= ?duration 5)
    :condition (and (at start (raw ?p)) (at start (free ?o)) (over all (lit ?o)))
    :effect (and (at start (not (free ?o))) (at start (not (raw ?p))) (at end (free ?o)) (at end (fired ?p))))
  (:action light :parameters (?o - oven) :precondition (not (lit ?o)) :effect (lit ?o)))"""
PROBLEM = """(define (problem two-pots) (:domain kiln)
  (:objects a b - pot o - oven)
  (:init (raw a) (raw b) (free o)) (:goal (and (fired a) (fired b))))"""
PLAN = "0: (light o)\n1.0: (fire a o) [5.0]\n6.01: (fire b o) [5]\n"
