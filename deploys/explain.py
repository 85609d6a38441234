"""Show what would be served on every host and why; changes nothing."""

from pyinfra import host

from deploys.steps import planning
from gpuwright.explain import explain_plan

for line in explain_plan(planning.plan_only()).splitlines():
    host.log(line)
