; Hoists bring crates into depots. A cell holds one crate or one hoist, so a crate put down can block the way; a dock,
; which joins containers and depots, holds any number of hoists (typed STRIPS).
(define (domain storage)
  (:requirements :strips :typing)
  (:types
    area place hoist crate - object
    cell dock - area
    depot container - place)
  (:predicates
    (connected ?a - area ?b - area)
    (part-of ?a - cell ?p - place)
    (clear ?a - cell)
    (at ?h - hoist ?a - area)
    (available ?h - hoist)
    (lifting ?h - hoist ?c - crate)
    (on ?c - crate ?a - cell)
    (in ?c - crate ?p - place))
  (:action lift
    :parameters (?h - hoist ?c - crate ?a - cell ?from - area ?p - place)
    :precondition (and (at ?h ?from) (connected ?from ?a) (available ?h) (on ?c ?a) (part-of ?a ?p))
    :effect (and (lifting ?h ?c) (clear ?a) (not (available ?h)) (not (on ?c ?a)) (not (in ?c ?p))))
  (:action drop
    :parameters (?h - hoist ?c - crate ?a - cell ?from - area ?p - place)
    :precondition (and (at ?h ?from) (connected ?from ?a) (lifting ?h ?c) (clear ?a) (part-of ?a ?p))
    :effect (and (available ?h) (on ?c ?a) (in ?c ?p) (not (lifting ?h ?c)) (not (clear ?a))))
  (:action move
    :parameters (?h - hoist ?from - cell ?to - cell)
    :precondition (and (at ?h ?from) (connected ?from ?to) (clear ?to))
    :effect (and (at ?h ?to) (clear ?from) (not (at ?h ?from)) (not (clear ?to))))
  (:action go-out
    :parameters (?h - hoist ?from - cell ?to - dock)
    :precondition (and (at ?h ?from) (connected ?from ?to))
    :effect (and (at ?h ?to) (clear ?from) (not (at ?h ?from))))
  (:action go-in
    :parameters (?h - hoist ?from - dock ?to - cell)
    :precondition (and (at ?h ?from) (connected ?from ?to) (clear ?to))
    :effect (and (at ?h ?to) (not (at ?h ?from)) (not (clear ?to)))))
