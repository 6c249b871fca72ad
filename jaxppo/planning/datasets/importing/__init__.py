"""Planning problems from elsewhere: folders of PDDL, PlanBench, the ten columns, rows of our own."""
