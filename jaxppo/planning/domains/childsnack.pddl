; Sandwiches are made in the kitchen, carried on trays and served to waiting children; children who do not tolerate
; gluten get a sandwich whose bread and filling have none (typed STRIPS with a constant).
(define (domain childsnack)
  (:requirements :strips :typing)
  (:types child bread filling sandwich tray place - object)
  (:constants kitchen - place)
  (:predicates
    (bread_in_kitchen ?b - bread)
    (filling_in_kitchen ?f - filling)
    (gluten_free_bread ?b - bread)
    (gluten_free_filling ?f - filling)
    (not_made ?s - sandwich)
    (sandwich_in_kitchen ?s - sandwich)
    (gluten_free_sandwich ?s - sandwich)
    (on_tray ?s - sandwich ?t - tray)
    (at ?t - tray ?p - place)
    (allergic ?c - child)
    (not_allergic ?c - child)
    (waiting ?c - child ?p - place)
    (served ?c - child))
  (:action make_gluten_free_sandwich
    :parameters (?s - sandwich ?b - bread ?f - filling)
    :precondition (and (not_made ?s) (bread_in_kitchen ?b) (filling_in_kitchen ?f)
      (gluten_free_bread ?b) (gluten_free_filling ?f))
    :effect (and (sandwich_in_kitchen ?s) (gluten_free_sandwich ?s)
      (not (not_made ?s)) (not (bread_in_kitchen ?b)) (not (filling_in_kitchen ?f))))
  (:action make_sandwich
    :parameters (?s - sandwich ?b - bread ?f - filling)
    :precondition (and (not_made ?s) (bread_in_kitchen ?b) (filling_in_kitchen ?f))
    :effect (and (sandwich_in_kitchen ?s)
      (not (not_made ?s)) (not (bread_in_kitchen ?b)) (not (filling_in_kitchen ?f))))
  (:action put_on_tray
    :parameters (?s - sandwich ?t - tray)
    :precondition (and (sandwich_in_kitchen ?s) (at ?t kitchen))
    :effect (and (on_tray ?s ?t) (not (sandwich_in_kitchen ?s))))
  (:action move_tray
    :parameters (?t - tray ?from - place ?to - place)
    :precondition (at ?t ?from)
    :effect (and (at ?t ?to) (not (at ?t ?from))))
  (:action serve_gluten_free_sandwich
    :parameters (?s - sandwich ?c - child ?t - tray ?p - place)
    :precondition (and (allergic ?c) (waiting ?c ?p) (on_tray ?s ?t) (at ?t ?p) (gluten_free_sandwich ?s))
    :effect (and (served ?c) (not (on_tray ?s ?t))))
  (:action serve_sandwich
    :parameters (?s - sandwich ?c - child ?t - tray ?p - place)
    :precondition (and (not_allergic ?c) (waiting ?c ?p) (on_tray ?s ?t) (at ?t ?p))
    :effect (and (served ?c) (not (on_tray ?s ?t)))))
