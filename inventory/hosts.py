"""Your machines. Edit this file, then: pyinfra inventory/hosts.py deploys/serve.py

What a host should serve stands in one key of its data, `gpuwright`; everything else in there is
pyinfra's (ssh_user, _sudo, ...). docs/want.md lists the keys.
"""

hosts = [
    # ("tower.lan", {"ssh_user": "root", "gpuwright": {"model": "Qwen3.6-27B"}}),
    # ("shelf.lan", {"ssh_user": "me", "_sudo": True, "gpuwright": {"model": "auto"}}),
]
