"""Pictures of what a run reports, one a module; each draws what it is given and asks no cluster."""
