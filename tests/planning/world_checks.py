"""What must be true of a problem of each domain at its start, said without the generators."""

from collections import defaultdict
from collections.abc import Iterable

from jaxppo.planning import Problem


class World:
    """Facts by predicate and objects by type; goals are facts of the predicate's name in `goal`."""

    def __init__(self, problem: Problem):
        self.facts = _by_predicate(problem.init_order)
        self.goal = _by_predicate(literal.atom for literal in problem.goal)
        self.objects: dict[str, list[str]] = defaultdict(list)
        for name, types in problem.objects.items():
            for kind in problem.domain.ancestors[types[0]]:
                self.objects[kind].append(name)

    def unary(self, predicate: str) -> list[str]:
        return sorted(name for (name,) in self.facts[predicate])

    def value(self, *predicates: str) -> dict[str, str]:
        """The second argument by the first, of which each must occur once."""
        pairs = [pair for predicate in predicates for pair in self.facts[predicate]]
        assert len({name for name, _ in pairs}) == len(pairs), pairs
        return dict(pairs)


def _by_predicate(atoms: Iterable[tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for predicate, *arguments in atoms:
        facts[predicate].append(tuple(arguments))
    return facts


def same(a: Iterable[str], b: Iterable[str]) -> bool:
    return sorted(a) == sorted(b)


def is_connected(nodes: Iterable[str], edges: Iterable[tuple[str, ...]]) -> bool:
    """Whether edges, which must go both ways and between different nodes, connect all nodes and no others."""
    reach = defaultdict(set)
    for a, b in edges:
        reach[a].add(b)
    assert all(a in reach[b] and a != b for a in list(reach) for b in reach[a])
    nodes = set(nodes)
    seen, waiting = set(), [min(nodes)]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(reach[node])
    return seen == nodes


def check_gripper(world: World):
    rooms, balls, hands = (world.unary(kind) for kind in ("room", "ball", "gripper"))
    assert same([*rooms, *balls, *hands], world.objects["object"])
    assert len(rooms) >= 2 and len(hands) >= 1
    (here,) = world.unary("at-robby")
    assert here in rooms
    places = world.value("at")
    assert same(places, balls) and set(places.values()) <= set(rooms)
    assert world.unary("free") == hands and not world.facts["carry"]
    assert all(ball in balls and room in rooms for ball, room in world.goal["at"])


def check_logistics(world: World):
    city, places = world.value("in-city"), world.value("at")
    assert same(city, world.objects["place"]) and set(city.values()) == set(world.objects["city"])
    assert same(places, world.objects["movable"]) and not world.facts["in"]
    airports = set(world.objects["airport"])
    assert {city[airport] for airport in airports} == set(world.objects["city"])
    assert {city[places[truck]] for truck in world.objects["truck"]} == set(world.objects["city"])
    assert world.objects["airplane"] and all(places[plane] in airports for plane in world.objects["airplane"])
    assert all(package in world.objects["package"] for package, _ in world.goal["at"])


def check_ferry(world: World):
    places, loaded = world.value("at"), world.unary("on")
    assert same([*places, *loaded], world.objects["car"])
    assert len(loaded) + len(world.facts["empty-ferry"]) == 1
    assert len(world.facts["at-ferry"]) == 1


def check_hanoi(world: World):
    on, smaller = world.value("on"), set(world.facts["smaller"])
    discs = set(on)
    pegs = set(world.objects["object"]) - discs
    assert len(pegs) >= 3
    assert all(pair in smaller for pair in on.items())
    assert len(set(on.values())) == len(on)
    assert same(world.unary("clear"), set(world.objects["object"]) - set(on.values()))
    below = {disc: [other for small, other in smaller if small == disc] for disc in discs}
    assert sorted(len(larger) for larger in below.values()) == [len(pegs) + number for number in range(len(discs))]
    assert all((larger, disc) not in smaller for disc, others in below.items() for larger in others)
    assert all(pegs <= set(others) for others in below.values())
    supports = [support for _, support in world.goal["on"]]
    assert len(supports) == len(set(supports)) and set(world.goal["on"]) <= smaller


def check_miconic(world: World):
    floors, people = world.objects["floor"], world.objects["passenger"]
    heights = {floor: [high for high, _ in world.facts["above"]].count(floor) for floor in floors}
    assert sorted(heights.values()) == list(range(len(floors)))
    assert all(heights[high] > heights[low] for high, low in world.facts["above"])
    origin, destin = world.value("origin"), world.value("destin")
    assert same(origin, people) and same(destin, people)
    assert all(origin[person] != destin[person] for person in people)
    assert len(world.facts["lift-at"]) == 1 and not world.facts["boarded"] and not world.facts["served"]


def check_visitall(world: World):
    assert is_connected(world.objects["cell"], world.facts["connected"])
    assert len(world.facts["at-robot"]) == 1 and world.facts["at-robot"] == world.facts["visited"]


def check_depots(world: World):
    places, on = world.value("at"), world.value("on")
    crates, surfaces = world.objects["crate"], world.objects["surface"]
    assert same(places, world.objects["locatable"]) and same(on, crates) and world.objects["truck"]
    assert len(set(on.values())) == len(on)
    assert all(places[crate] == places[support] for crate, support in on.items())
    for crate in crates:
        height = 0
        while crate in on:
            crate, height = on[crate], height + 1
            assert height <= len(crates)
        assert crate in world.objects["pallet"]
    assert same(world.unary("clear"), set(surfaces) - set(on.values()))
    assert same(world.unary("available"), world.objects["hoist"]) and not world.facts["lifting"]
    assert {places[hoist] for hoist in world.objects["hoist"]} == set(world.objects["place"])
    supports = [support for _, support in world.goal["on"]]
    assert len(set(supports)) == len(supports)


def check_driverlog(world: World):
    places = world.value("at")
    by_road = {a for a, _ in world.facts["link"]}
    assert same(places, world.objects["locatable"]) and world.objects["driver"] and world.objects["truck"]
    assert is_connected(by_road, world.facts["link"])
    assert is_connected(world.objects["location"], world.facts["path"])
    assert {*places.values(), *(place for _, place in world.goal["at"])} <= by_road
    assert same(world.unary("empty"), world.objects["truck"]) and not world.facts["in"] and not world.facts["driving"]
    wanted = [name for name, _ in world.goal["at"]]
    assert len(set(wanted)) == len(wanted)


def check_satellite(world: World):
    carrier, target = world.value("on_board"), world.value("calibration_target")
    assert same(carrier, world.objects["instrument"]) and same(target, carrier)
    assert set(carrier.values()) == set(world.objects["satellite"])
    assert {name for name, _ in world.facts["supports"]} == set(carrier)
    assert {mode for _, mode in world.facts["supports"]} == set(world.objects["mode"])
    assert same(world.value("pointing"), world.objects["satellite"])
    assert same(world.unary("power_avail"), world.objects["satellite"])
    assert not any(world.facts[name] for name in ("power_on", "calibrated", "have_image"))
    poses = [satellite for satellite, _ in world.goal["pointing"]]
    assert len(set(poses)) == len(poses)


def check_childsnack(world: World):
    allergic, tolerant = world.unary("allergic"), world.unary("not_allergic")
    assert same([*allergic, *tolerant], world.objects["child"])
    waiting, trays = world.value("waiting"), world.value("at")
    assert same(waiting, world.objects["child"]) and "kitchen" not in waiting.values()
    assert same(trays, world.objects["tray"]) and trays
    for kind in ("bread", "filling"):
        assert same(world.unary(f"{kind}_in_kitchen"), world.objects[kind])
        assert len(world.objects[kind]) >= len(waiting)
        assert len(world.unary(f"gluten_free_{kind}")) >= len(allergic)
    assert same(world.unary("not_made"), world.objects["sandwich"])
    assert len(world.objects["sandwich"]) >= len(waiting)
    assert not any(world.facts[name] for name in ("on_tray", "sandwich_in_kitchen", "served"))


def check_storage(world: World):
    home, on, inside, stands = (world.value(name) for name in ("part-of", "on", "in", "at"))
    cells, crates = world.objects["cell"], world.objects["crate"]
    assert same(home, cells) and same(on, crates) and same(stands, world.objects["hoist"])
    assert inside == {crate: home[cell] for crate, cell in on.items()}
    assert set(inside.values()) == set(world.objects["container"])
    used = [*on.values(), *(area for area in stands.values() if area in cells)]
    assert len(set(used)) == len(used)
    assert same(world.unary("clear"), set(cells) - set(used))
    assert same(world.unary("available"), stands) and not world.facts["lifting"]
    (dock,) = world.objects["dock"]
    assert is_connected([*cells, dock], world.facts["connected"])
    assert all((dock, cell) in world.facts["connected"] for cell in on.values())
    for depot in world.objects["depot"]:
        own = [cell for cell in cells if home[cell] == depot]
        assert len(own) > [target for _, target in world.goal["in"]].count(depot)
        assert is_connected(own, [(a, b) for a, b in world.facts["connected"] if a in own and b in own] or [])
    assert all(target in world.objects["depot"] for _, target in world.goal["in"])


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
