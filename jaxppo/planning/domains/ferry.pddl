; A ferry crosses between shores with at most one car on board (typed STRIPS).
(define (domain ferry)
  (:requirements :strips :typing)
  (:types car shore - object)
  (:predicates (at-ferry ?s - shore) (at ?c - car ?s - shore) (on ?c - car) (empty-ferry))
  (:action sail
    :parameters (?from - shore ?to - shore)
    :precondition (at-ferry ?from)
    :effect (and (at-ferry ?to) (not (at-ferry ?from))))
  (:action board
    :parameters (?c - car ?s - shore)
    :precondition (and (at ?c ?s) (at-ferry ?s) (empty-ferry))
    :effect (and (on ?c) (not (at ?c ?s)) (not (empty-ferry))))
  (:action debark
    :parameters (?c - car ?s - shore)
    :precondition (and (on ?c) (at-ferry ?s))
    :effect (and (at ?c ?s) (empty-ferry) (not (on ?c)))))
