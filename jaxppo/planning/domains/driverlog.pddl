; Drivers walk along paths and drive trucks along links; trucks carry packages (typed STRIPS).
(define (domain driverlog)
  (:requirements :strips :typing)
  (:types location locatable - object  driver truck package - locatable)
  (:predicates
    (at ?x - locatable ?l - location)
    (in ?k - package ?t - truck)
    (driving ?d - driver ?t - truck)
    (empty ?t - truck)
    (link ?a - location ?b - location)
    (path ?a - location ?b - location))
  (:action load-truck
    :parameters (?k - package ?t - truck ?l - location)
    :precondition (and (at ?t ?l) (at ?k ?l))
    :effect (and (in ?k ?t) (not (at ?k ?l))))
  (:action unload-truck
    :parameters (?k - package ?t - truck ?l - location)
    :precondition (and (at ?t ?l) (in ?k ?t))
    :effect (and (at ?k ?l) (not (in ?k ?t))))
  (:action board-truck
    :parameters (?d - driver ?t - truck ?l - location)
    :precondition (and (at ?t ?l) (at ?d ?l) (empty ?t))
    :effect (and (driving ?d ?t) (not (at ?d ?l)) (not (empty ?t))))
  (:action disembark-truck
    :parameters (?d - driver ?t - truck ?l - location)
    :precondition (and (at ?t ?l) (driving ?d ?t))
    :effect (and (at ?d ?l) (empty ?t) (not (driving ?d ?t))))
  (:action drive-truck
    :parameters (?t - truck ?from - location ?to - location ?d - driver)
    :precondition (and (at ?t ?from) (driving ?d ?t) (link ?from ?to))
    :effect (and (at ?t ?to) (not (at ?t ?from))))
  (:action walk
    :parameters (?d - driver ?from - location ?to - location)
    :precondition (and (at ?d ?from) (path ?from ?to))
    :effect (and (at ?d ?to) (not (at ?d ?from)))))
