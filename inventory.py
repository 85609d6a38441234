"""The default inventory: this machine, with the best catalogue model that fits it."""

hosts = [("@local", {"gpuwright": {"model": "auto"}})]
