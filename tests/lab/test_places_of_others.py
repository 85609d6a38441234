"""Places of ours that somebody else has had a hand in: given back to root, or refused with what to
do, while what was serving serves on."""

from collections.abc import Iterator

import pytest

from gpuwright.layout import USER, Layout
from tests.lab.lab import Lab
from tests.lab.serving import run
from tests.lab.test_serve import PROTECTED, Served
from tests.lab.warm import boot_warm

pytestmark = pytest.mark.lab

LAYOUT = Layout()
STAND = "Directories stand with their owners and modes"


@pytest.fixture(scope="module")
def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = boot_warm(lab, "others")
    yield Served(node, tmp_path_factory.mktemp("others"))
    node.destroy()


@pytest.fixture(autouse=True)
def goes_on(served: Served) -> Iterator[None]:
    """The same process answers before and after, and then nothing is left to do."""
    pid = served.pid
    yield
    assert served.ask("/v1/models", key=served.key).endswith("\n200")
    assert served.pid == pid
    assert run(served.inventory).changed == []


def test_what_was_given_to_another_user_is_roots_again(served: Served) -> None:
    places = f"/opt/gpuwright {LAYOUT.model_store}"
    served.shell(f"chown -hR nobody:nogroup {places}")
    assert set(run(served.inventory).changed) == {STAND, PROTECTED}
    assert served.shell(f"find {places} ! -user root -o ! -group root") == ""


def test_a_link_in_the_place_of_ours_is_refused_with_what_does_its_work(served: Served) -> None:
    served.shell("mv /opt/gpuwright /srv/moved && ln -s /srv/moved /opt/gpuwright")
    try:
        done = run(served.inventory, check=False)
    finally:
        served.shell("rm /opt/gpuwright && mv /srv/moved /opt/gpuwright")
    assert done.status != 0
    assert "/opt/gpuwright: needs a directory, or another disk mounted there, found a link" in (
        done.text
    )
    assert "mount --bind" in done.text


def test_another_disk_in_the_place_of_ours_is_taken(served: Served) -> None:
    served.shell("mv /opt/gpuwright /srv/moved && mkdir /opt/gpuwright")
    served.shell("mount --bind /srv/moved /opt/gpuwright")
    try:
        assert run(served.inventory).changed == []
    finally:
        served.shell("umount /opt/gpuwright && rmdir /opt/gpuwright")
        served.shell("mv /srv/moved /opt/gpuwright")


@pytest.mark.parametrize("place", [LAYOUT.unit_path("llm"), LAYOUT.environment_path("llm")])
def test_what_is_no_file_in_the_place_of_one_is_refused(served: Served, place: str) -> None:
    served.shell(f"mv {place} /root/kept && mkdir {place}")
    try:
        done = run(served.inventory, check=False)
    finally:
        served.shell(f"rmdir {place} && mv /root/kept {place}")
    assert done.status != 0
    assert f"{place} is a directory, needed a regular file; move it away" in done.text


def test_a_user_that_is_gone_is_made_again(served: Served) -> None:
    served.shell(f"cp -a /etc/passwd /root/passwd && sed -i /^{USER}:/d /etc/passwd")
    try:
        assert "The service user exists" in run(served.inventory).changed
    finally:
        # With the number that the process has.
        served.shell("cat /root/passwd > /etc/passwd")


def test_a_stamp_of_another_shape_is_no_reason_to_end(served: Served) -> None:
    stamp = f"{served.engine_dir}/gpuwright.json"
    served.shell(f"cp -a {stamp} /root/stamp")
    served.shell(f'sed -i \'s/"schema": 1/"schema": 99/\' {stamp}')
    try:
        assert run(served.inventory).changed == []
    finally:
        served.shell(f"cp -a /root/stamp {stamp}")
