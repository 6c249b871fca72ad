"""A typed domain with constants, costs and `either`, and a problem: what a reader of PDDL has to understand."""

DELIVERY = """
(define (domain delivery) ; comments count as blank
  (:requirements :strips :typing :equality :negative-preconditions :action-costs)
  (:types place thing - object
          truck box - thing
          VAN - truck
          raft - (either truck box))
  (:constants hub - place)
  (:predicates (at ?t - thing ?p - place) (in ?b - box ?t - truck) (shut ?p - place))
  (:functions (total-cost) - number (length ?a ?b - place) - number)
  (:action drive :parameters (?t - truck ?from ?to - place)
    :precondition (and (at ?t ?from) (not (= ?from ?to)) (not (shut ?to)))
    :effect (and (at ?t ?to) (not (at ?t ?from)) (increase (total-cost) (length ?from ?to))))
  (:action open :parameters (?p - place) :precondition () :effect (not (shut ?p)))
  (:action load :parameters (?b - (either box raft) ?t - truck)
    :precondition (and (at ?t hub) (and (at ?b hub)))
    :effect (and (in ?b ?t) (not (at ?b hub)))))
"""
ERRAND = """(define (problem errand)
  (:domain delivery)
  (:objects Home - place v - van b1 b2 - box)
  (:init (at v home) (at b1 hub) (= (length home hub) 3) (= (total-cost) 0) (at v home) (not (shut hub)))
  (:goal (and (in b1 v) (not (at v hub))))
  (:metric minimize (total-cost)))
"""
