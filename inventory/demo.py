"""The throwaway node of `make demo`, found by its name in the running lab."""

from tests.lab.lab import Lab

_node = Lab.find("demo").boot("box")

_want = {"model": "SmolLM2-135M-Instruct"}

hosts = [(_node.name, _node.pyinfra_host_data() | {"gpuwright": _want})]
