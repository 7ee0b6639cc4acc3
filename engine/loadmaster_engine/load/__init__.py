"""Loading on one rank: reserve an arena, execute the plan's operations into it, bind parameters to it, verify."""
