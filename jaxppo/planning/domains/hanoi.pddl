; Discs on pegs: the top disc of a pile moves onto a peg or disc that is free and may carry it (untyped STRIPS).
(define (domain hanoi)
  (:requirements :strips)
  (:predicates (on ?x ?y) (clear ?x) (smaller ?x ?y))
  (:action move
    :parameters (?disc ?from ?to)
    :precondition (and (smaller ?disc ?to) (on ?disc ?from) (clear ?disc) (clear ?to))
    :effect (and (on ?disc ?to) (clear ?from) (not (on ?disc ?from)) (not (clear ?to)))))
