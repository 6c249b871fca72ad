"""Planning domains with generators of problems: one file and its PDDL for each, and one row here.

In: a size and a random generator. Out: the PDDL text of a solvable problem.
"""

from jaxppo.planning.domains.blocksworld import BLOCKSWORLD
from jaxppo.planning.domains.childsnack import CHILDSNACK
from jaxppo.planning.domains.depots import DEPOTS
from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.driverlog import DRIVERLOG
from jaxppo.planning.domains.ferry import FERRY
from jaxppo.planning.domains.gripper import GRIPPER
from jaxppo.planning.domains.hanoi import HANOI
from jaxppo.planning.domains.logistics import LOGISTICS
from jaxppo.planning.domains.miconic import MICONIC
from jaxppo.planning.domains.satellite import SATELLITE
from jaxppo.planning.domains.storage import STORAGE
from jaxppo.planning.domains.visitall import VISITALL

__all__ = ["BLOCKSWORLD", "DOMAINS", "Phrases", "PlanningDomain"]

DOMAINS: dict[str, PlanningDomain] = {
    domain.name: domain
    for domain in (
        BLOCKSWORLD,
        CHILDSNACK,
        DEPOTS,
        DRIVERLOG,
        FERRY,
        GRIPPER,
        HANOI,
        LOGISTICS,
        MICONIC,
        SATELLITE,
        STORAGE,
        VISITALL,
    )
}
"""Name to domain."""
