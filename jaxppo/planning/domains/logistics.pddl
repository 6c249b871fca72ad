; Trucks drive inside their city, planes fly between airports, and packages ride in both (typed STRIPS).
(define (domain logistics)
  (:requirements :strips :typing)
  (:types
    city place movable - object
    airport location - place
    package vehicle - movable
    truck airplane - vehicle)
  (:predicates
    (at ?x - movable ?p - place)
    (in ?k - package ?v - vehicle)
    (in-city ?p - place ?c - city))
  (:action load-truck
    :parameters (?k - package ?t - truck ?p - place)
    :precondition (and (at ?k ?p) (at ?t ?p))
    :effect (and (in ?k ?t) (not (at ?k ?p))))
  (:action unload-truck
    :parameters (?k - package ?t - truck ?p - place)
    :precondition (and (in ?k ?t) (at ?t ?p))
    :effect (and (at ?k ?p) (not (in ?k ?t))))
  (:action load-airplane
    :parameters (?k - package ?a - airplane ?p - airport)
    :precondition (and (at ?k ?p) (at ?a ?p))
    :effect (and (in ?k ?a) (not (at ?k ?p))))
  (:action unload-airplane
    :parameters (?k - package ?a - airplane ?p - airport)
    :precondition (and (in ?k ?a) (at ?a ?p))
    :effect (and (at ?k ?p) (not (in ?k ?a))))
  (:action drive-truck
    :parameters (?t - truck ?from - place ?to - place ?c - city)
    :precondition (and (at ?t ?from) (in-city ?from ?c) (in-city ?to ?c))
    :effect (and (at ?t ?to) (not (at ?t ?from))))
  (:action fly-airplane
    :parameters (?a - airplane ?from - airport ?to - airport)
    :precondition (at ?a ?from)
    :effect (and (at ?a ?to) (not (at ?a ?from)))))
