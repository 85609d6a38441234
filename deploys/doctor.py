"""Say what is wrong with every host, worst first: `pyinfra -y INVENTORY deploys/doctor.py`."""

from deploys.steps import diagnosing

diagnosing.told()
