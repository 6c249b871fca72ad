; A robot walks between connected cells and remembers where it has been (typed STRIPS).
(define (domain visitall)
  (:requirements :strips :typing)
  (:types cell - object)
  (:predicates (connected ?a - cell ?b - cell) (at-robot ?c - cell) (visited ?c - cell))
  (:action move
    :parameters (?from - cell ?to - cell)
    :precondition (and (at-robot ?from) (connected ?from ?to))
    :effect (and (at-robot ?to) (visited ?to) (not (at-robot ?from)))))
