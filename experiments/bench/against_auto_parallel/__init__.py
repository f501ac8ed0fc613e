"""autoddl beside the auto-parallel that OneFlow has built in: seconds to plan, and both plans' cost."""
